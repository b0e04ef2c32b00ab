"""The lab's slurm.conf, gres.conf, cgroup.conf and slurmdbd.conf as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lab.cgroups import CgroupVersion
from lab.layout import Layout
from lab.options import SHARDS_PER_NODE, JobSubmit, Node, Options

CLUSTER = "lab"
SLURM_USER = "slurm"
_FIRST_WITH_CGROUPS_DISABLED = (23, 2)


def slurm_conf(layout: Layout, options: Options, nodes: Sequence[Node], cgroups: CgroupVersion) -> str:
    """Return the text of slurm.conf."""
    fenced = cgroups is not CgroupVersion.NONE
    gres_types = ["gpu", "shard"] if _has_shards(nodes) else ["gpu"]
    of_model = [f"gres/gpu:{node.model}" for node in nodes]
    tres = ["gres/gpu", *dict.fromkeys(of_model), *(f"gres/{name}" for name in gres_types[1:])]
    enforce = ["AccountingStorageEnforce=associations,limits,qos"] if options.native_limits else []
    lines = [
        f"ClusterName={CLUSTER}",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={layout.slurmctld_port}",
        f"SlurmUser={SLURM_USER}",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # A requeued job waits until its credential has expired: 120 s by default.
        f"AuthInfo=socket={layout.munge_socket},cred_expire=10",
        f"StateSaveLocation={layout.slurmctld}",
        f"SlurmdSpoolDir={layout.root}/nodes/%n/spool",
        f"SlurmctldPidFile={layout.slurmctld}/slurmctld.pid",
        f"SlurmdPidFile={layout.root}/nodes/%n/slurmd.pid",
        f"SlurmctldLogFile={layout.log}/slurmctld.log",
        f"SlurmdLogFile={layout.log}/slurmd-%n.log",
        "SlurmdParameters=config_overrides",  # accept more CPUs than this host has
        "MailProg=/bin/true",
        "MpiDefault=none",
        "ReturnToService=2",
        "KillWait=2",
        "MessageTimeout=30",
        "MinJobAge=300",
        "MaxJobCount=200000",
        "MaxArraySize=10001",
        # Run the hooks on every node of a job at its start, also for salloc without srun.
        "PrologFlags=Alloc",
        f"Prolog={layout.etc}/prolog.d/*",
        f"Epilog={layout.etc}/epilog.d/*",
        f"ProctrackType=proctrack/{'cgroup' if fenced else 'linuxproc'}",
        f"TaskPlugin=task/{'cgroup' if fenced else 'none'}",
        "JobAcctGatherType=jobacct_gather/linux",
        "SchedulerType=sched/backfill",
        # Jobs start at once; by default a batch job may wait 3 s, and the scheduler pauses for 2 s.
        "SchedulerParameters=batch_sched_delay=0,sched_min_interval=200000,sched_interval=5,bf_interval=5",
        "PriorityType=priority/multifactor",
        # Loans of GPUs need preemption; no job is preempted unless the policy has `owners:`.
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        # Without these defaults, a job without --mem gets all memory of the node.
        "DefMemPerGPU=16384",
        "DefMemPerCPU=1024",
        f"GresTypes={','.join(gres_types)}",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={layout.slurmdbd_port}",
        f"AccountingStoragePass={layout.munge_socket}",
        *enforce,
        f"AccountingStorageTRES={','.join(tres)}",
        "AccountingStoreFlags=job_comment",
    ]
    if options.job_submit is not JobSubmit.NONE:
        lines.append("JobSubmitPlugins=lua")
    for node in nodes:
        if node.name == options.dynamic:
            # TreeWidth: Slurm does not forward messages through dynamic nodes.
            lines += [f"MaxNodeCount={len(nodes)}", "TreeWidth=65533"]
            lines.append(f"SlurmdPort={layout.slurmd_port(node.number)}")
        else:
            port = layout.slurmd_port(node.number)
            lines.append(
                f"NodeName={node.name} Port={port} {_node_settings(node, shards=_has_shards(nodes))}"
            )
    lines.append("PartitionName=gpu Nodes=ALL Default=YES DefaultTime=1:00:00 MaxTime=INFINITE State=UP")
    lines += options.extra_slurm_conf
    return "\n".join(lines) + "\n"


def _has_shards(nodes: Sequence[Node]) -> bool:
    """Return whether the nodes have shards, which are not possible with MIG instances.

    With shards, Slurm treats each device file of a MIG instance as a GPU.
    """
    return not any(node.cut for node in nodes)


def slurmd_options(options: Options, node: Node, nodes: Sequence[Node]) -> list[str]:
    """Return the options with which slurmd registers a dynamic node; [] for a node of slurm.conf."""
    if node.name != options.dynamic:
        return []
    return ["-Z", "--conf", _node_settings(node, shards=_has_shards(nodes))]


def _node_settings(node: Node, *, shards: bool) -> str:
    """Return the settings of a node in slurm.conf, or of a dynamic node in `slurmd -Z --conf`."""
    types = Counter(gpu.slurm_type for gpu in node.handed_out)
    gres = [f"gpu:{name}:{count}" for name, count in types.items()]
    if shards:
        gres.append(f"shard:{SHARDS_PER_NODE}")
    return (
        f"NodeHostname=localhost NodeAddr={node.address} CPUs=32 RealMemory=100000 "
        f"Gres={','.join(gres)} Feature={node.zone},{node.model} State=UNKNOWN"
    )


def gres_conf(nodes: Sequence[Node]) -> str:
    """Return gres.conf: one line per GPU or MIG instance, in the order of Slurm's positions."""
    lines = ["AutoDetect=off"]
    for node in nodes:
        for gpu in node.handed_out:
            files = ",".join(str(file) for file in (gpu.file, *gpu.capabilities))
            key = "MultipleFiles" if gpu.capabilities else "File"
            lines.append(f"NodeName={node.name} Name=gpu Type={gpu.slurm_type} {key}={files}")
        if _has_shards(nodes):
            lines.append(f"NodeName={node.name} Name=shard Count={SHARDS_PER_NODE}")
    return "\n".join(lines) + "\n"


def cgroup_conf(cgroups: CgroupVersion, slurm_version: tuple[int, int]) -> str:
    """Return cgroup.conf, which constrains devices but, since this host is small, not CPUs and memory."""
    plugin = cgroups
    if cgroups is CgroupVersion.NONE and slurm_version < _FIRST_WITH_CGROUPS_DISABLED:
        plugin = CgroupVersion.V1  # has no effect unless another plugin uses it
    lines = [f"CgroupPlugin={plugin}"]
    if cgroups is not CgroupVersion.NONE:
        lines += ["CgroupMountpoint=/sys/fs/cgroup", "ConstrainDevices=yes"]
    if cgroups is CgroupVersion.V2:
        lines.append("IgnoreSystemd=yes")  # slurmd creates its own scope, without the host's systemd
    return "\n".join(lines) + "\n"


def slurmdbd_conf(layout: Layout, password: str) -> str:
    """Return slurmdbd.conf, which contains the database password."""
    return f"""\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={layout.slurmdbd_port}
SlurmUser={SLURM_USER}
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
LogFile={layout.log}/slurmdbd.log
PidFile={layout.root}/slurmdbd/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={layout.mariadb_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""
