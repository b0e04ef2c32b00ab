"""Check that a job without a memory request leaves memory for jobs on other GPUs.

Measured on Slurm 22.05: a job with GPUs gets the DefMemPerGPU of its partition, or otherwise that of
slurm.conf. If neither is set, or if the job has no GPUs, it gets the DefMemPerCPU or DefMemPerNode of its
partition, or otherwise that of slurm.conf. If all of these are unset, the job gets all memory of its nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, ok, warn
from slurm_gpu.cli.doctor.checks.slurm.unread import reads
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.conf_file import ConfLine
from slurm_gpu.slurm.runner import query_environment
from slurm_gpu.slurm.submission import Partition, memory_per_gpu, read_partitions
from slurm_gpu.text.units import counted

_APPLIED = "then run scontrol reconfigure"


@dataclass(frozen=True, slots=True)
class _PartitionMemory:
    """The memory defaults of a partition in MiB: its own, or those of slurm.conf; None if unset in both."""

    partition: str
    nodes: Sequence[SlurmNode]
    """The nodes of the partition that have GPUs."""
    per_gpu: int | None
    per_cpu: int | None
    per_node: int | None

    @property
    def without_gpus(self) -> bool:
        """Return whether jobs without GPUs have a default.

        Jobs with GPUs get the same default if DefMemPerGPU is not set.
        """
        return self.per_cpu is not None or self.per_node is not None


@reads("DefMemPerGPU", "DefMemPerCPU", "DefMemPerNode", "PartitionName")
def defaults(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that partitions with GPUs have memory defaults that leave memory for jobs on every GPU."""
    raw = at.settings.raw
    handed_out = raw.get("SelectTypeParameters", "")
    if handed_out.startswith("CR_") and "MEMORY" not in handed_out.upper():
        yield ok(
            f"Slurm does not allocate memory (SelectTypeParameters={handed_out}), so no job can reserve it"
        )
        return
    found = list(_with_gpus(at, raw))
    nothing = [one for one in found if one.per_gpu is None and not one.without_gpus]
    gpus_only = [one for one in found if one.per_gpu is not None and not one.without_gpus]
    if nothing:
        yield warn(
            f"{_partitions(nothing)}: neither DefMemPerGPU nor DefMemPerCPU is set, so a job without --mem "
            "gets all memory of the node, and the other GPUs remain idle",
            f"set {_gpu_share(nothing)} and {_cpu_share(nothing)} {_where(nothing, found)}",
        )
    if gpus_only:
        yield warn(
            f"{_partitions(gpus_only)}: DefMemPerGPU is set without DefMemPerCPU, so a job that requests "
            "neither GPUs nor --mem gets all memory of the node, and the GPUs remain idle",
            f"set {_cpu_share(gpus_only)} {_where(gpus_only, found)}",
        )
    generous = [finding for one in found if (finding := _too_much(one)) is not None]
    yield from generous
    if not (nothing or gpus_only or generous):
        yield ok("jobs without --mem get a default, not all memory of the node")


def _with_gpus(at: DoctorContext, raw: Mapping[str, str]) -> Iterator[_PartitionMemory]:
    """Yield partitions with GPUs, except those whose jobs get whole nodes."""
    per_gpu = memory_per_gpu(raw.get("JobDefaults", ""))
    per_cpu, per_node = (_positive(raw.get(name, "")) for name in ("DefMemPerCPU", "DefMemPerNode"))
    for one in read_partitions(at.site.run, query_environment(os.environ)):
        nodes = [node for node in at.nodes if node.n_gpus and one.name in node.partitions]
        if not nodes or one.whole_nodes:
            continue
        own_gpu, own_cpu, own_node = _own(one, at.read_later.get(one.name))
        yield _PartitionMemory(
            partition=one.name,
            nodes=nodes,
            per_gpu=per_gpu if own_gpu is None else own_gpu,
            per_cpu=own_cpu if own_cpu or own_node else per_cpu,
            per_node=own_node if own_cpu or own_node else per_node,
        )


def _own(one: Partition, line: ConfLine | None) -> tuple[int | None, int | None, int | None]:
    """Return the partition's own memory per GPU, CPU and node, as in slurmctld or in a line of slurm.conf."""
    if line is not None:
        per_gpu, per_cpu, per_node = (
            _positive(line.get(f"DefMemPer{of}") or "") for of in ("GPU", "CPU", "Node")
        )
        return per_gpu, per_cpu, per_node
    return (
        one.default_memory_per_gpu_mib,
        one.default_memory_per_cpu_mib or None,
        one.default_memory_per_node_mib or None,
    )  # in Slurm, 0 means that no default is set


def _positive(text: str) -> int | None:
    """Return the number; None for 0 and UNLIMITED, which mean that there is no default."""
    return int(text) if text.isdigit() and int(text) else None


def _too_much(one: _PartitionMemory) -> CheckResult | None:
    """Return a finding if one job per GPU with default memory does not fit on a node."""
    for node in one.nodes:
        share = node.memory_mib // node.n_gpus
        if one.per_gpu is not None:
            name, mib = "DefMemPerGPU", one.per_gpu
        elif one.per_cpu is None and one.per_node is not None:
            name, mib = "DefMemPerNode", one.per_node
        else:
            continue  # the default is per CPU, and the number of CPUs of a job is unknown
        if mib > share:
            fit = node.memory_mib // mib
            return warn(
                f"partition {one.partition} has {name}={mib}, but {node.name} has {node.memory_mib} MiB for "
                f"{counted(node.n_gpus, 'GPU')}: jobs with one GPU and without --mem can use only {fit} of "
                "them",
                f"set {_gpu_share([one])} {_where([one], ())}",
            )
    return None


def _partitions(found: Sequence[_PartitionMemory]) -> str:
    names = ", ".join(one.partition for one in found)
    return f"partition {names}" if len(found) == 1 else f"partitions {names}"


def _gpu_share(found: Sequence[_PartitionMemory]) -> str:
    return f"DefMemPerGPU={min(node.memory_mib // node.n_gpus for one in found for node in one.nodes)}"


def _cpu_share(found: Sequence[_PartitionMemory]) -> str:
    shares = (node.memory_mib // node.cpus for one in found for node in one.nodes if node.cpus)
    return f"DefMemPerCPU={min(shares, default=1024)}"


def _where(lacking: Sequence[_PartitionMemory], all_of_them: Sequence[_PartitionMemory]) -> str:
    """Return where to set the defaults: globally if all partitions lack them, or else for each partition."""
    if len(lacking) == len(all_of_them):
        return f"(or less) in slurm.conf, each on its own line; {_APPLIED}"
    names = ", ".join(f"PartitionName={one.partition}" for one in lacking)
    return f"(or less) in slurm.conf, on the line of {names}; {_APPLIED}"
