"""What the rest of slurm-gpu asks of Slurm: one protocol, answered by every backend alike.

Times are UTC epoch seconds; None where Slurm says Unknown or None. Memory is MiB. GPU amounts are
thousandths of a GPU (`mgpu`), so that whole GPUs and shards add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from slurm_gpu.slurm.tres import SharesPerGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The part of slurm.conf that slurm-gpu reads; `raw` has every key as scontrol prints it."""

    cluster: str
    version: str
    slurm_user: str
    slurm_user_uid: int
    conf_path: str
    raw: Mapping[str, str] = field(repr=False)


def has_slurmdbd(settings: SlurmSettings) -> bool:
    """Whether this Slurm keeps accounts, QOS and limits at all."""
    return settings.raw.get("AccountingStorageType", "").endswith("slurmdbd")


def has_lua_plugin(settings: SlurmSettings) -> bool:
    """Whether slurmctld asks job_submit.lua: Slurm takes each plugin with and without `job_submit/`."""
    plugins = settings.raw.get("JobSubmitPlugins", "").split(",")
    return "lua" in (plugin.removeprefix("job_submit/") for plugin in plugins)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node as slurmctld sees it now."""

    name: str
    address: str
    state: str
    """Base state and flags in lower case, joined by "+": idle, mixed, allocated, down, idle+drain …"""
    reason: str | None
    cpus: int
    cpus_allocated: int
    memory_mib: int
    memory_allocated_mib: int
    gpus: Mapping[str, int]
    """GPUs by type ("" where untyped)."""
    gpus_allocated: Mapping[str, int]
    shards: int
    shards_allocated: int
    features: Sequence[str]
    partitions: Sequence[str]
    host: str = ""
    """NodeHostName: what that host calls itself; "" where it is not known."""
    weight: int = 1
    """Of the nodes that a job fits Slurm takes those with the least."""
    mps: int = 0
    mps_allocated: int = 0
    unaccounted: Sequence[str] = ()
    """Those of gpu, shard and mps that the node has and AccountingStorageTRES lacks: no TRES has them."""

    @property
    def n_gpus(self) -> int:
        """All GPUs of the node."""
        return sum(self.gpus.values())

    @property
    def shards_per_gpu(self) -> int | None:
        """Shards of one GPU; None where the node has none."""
        return self.per_gpu.shard

    @property
    def per_gpu(self) -> SharesPerGpu:
        """What makes one of its GPUs."""
        n = self.n_gpus
        shard, mps = (count // n if count and n else None for count in (self.shards, self.mps))
        return SharesPerGpu(shard, mps)

    @property
    def shared_mgpu(self) -> int:
        """What jobs hold of its GPUs by shards and MPS, in thousandths, rounded up."""
        held = ((self.shards_allocated, self.per_gpu.shard), (self.mps_allocated, self.per_gpu.mps))
        return sum(-(-count * 1000 // one_gpu) for count, one_gpu in held if one_gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that slurmctld still knows: pending, running, or ended within MinJobAge.

    An array whose tasks have not been split off yet is one entry with `n_tasks` > 1.
    """

    job_id: int
    array_job_id: int | None
    array_task: str | None
    """Task id of a split-off task, or the expression ("0-9%4") of an array not yet split."""
    n_tasks: int
    het_job_id: int | None
    name: str
    user: str
    uid: int
    account: str
    qos: str
    partition: str
    state: str
    """Upper case base state, such as PENDING or RUNNING."""
    reason: str
    restarts: int
    submit_s: int | None
    eligible_s: int | None
    start_s: int | None
    """Of a pending job, when Slurm expects it to start; None where it has not said."""
    end_s: int | None
    """Of a job that has not ended, when its time limit ends it."""
    time_limit_s: int | None
    n_nodes: int
    nodes: Sequence[str]
    """Those that it has now: without what it gave back in a resize, and while COMPLETING without those that
    it has left already. Once it has ended, all that it had at its end."""
    tres_requested: Mapping[str, float]
    """Totals by TRES name, memory in MiB: {"cpu": 8, "mem": 65536, "gres/gpu": 2, "gres/gpu:a100": 2}.

    Up to 24.05 Slurm shows only what was allocated once a job has started; it stands here too then.
    """
    tres_allocated: Mapping[str, float]
    gpu_index: Mapping[str, Mapping[str, Sequence[int]]]
    """Allocated positions by node and gres: {"n1": {"gpu": [0, 1]}}, for shards {"n1": {"shard": [3]}}."""
    gres_per_node: str
    """TresPerNode/TresPerJob as printed, to show what was asked for."""
    features: str
    admin_comment: str
    most_nodes: int | None = None
    """Upper end of the range of nodes (--nodes=1-3) that a pending job asks for; None without a range."""
    tres_per_node: str = ""
    """TresPerNode as printed, such as gres:gpu:2."""
    gres_per_task: str = ""
    """TresPerTask or TresPerSocket as printed, of which Slurm alone knows how many there are."""
    het_offset: int | None = None
    """Which component of the heterogeneous job `het_job_id` this is."""
    resized_s: int | None = None
    """When its nodes changed last, by its owner or because one failed; None where they never did."""

    @property
    def label(self) -> str:
        """The job id as users know it: 17, 17_3 for an array task, 17+1 for a het component."""
        if self.het_job_id is not None and self.het_offset is not None:
            return f"{self.het_job_id}+{self.het_offset}"
        if self.array_job_id is not None and self.array_task is not None:
            return f"{self.array_job_id}_{self.array_task}"
        return str(self.job_id)


class AccountingRun(NamedTuple):
    """One row of Slurm's accounting: one execution of a job, so that each requeue has its own.

    Its fields are the imported columns of the table `run`, the key first. A tuple, as a million of them are
    made at a first import.
    """

    cluster: str
    job_id: int
    submit_s: int
    sluid: str | None
    restart: int | None
    array_job_id: int | None
    array_task: int | None
    het_job_id: int | None
    het_offset: int | None
    name: str
    user: str
    uid: int | None
    account: str
    qos: str
    partition: str
    state: str
    """COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, REQUEUED, PREEMPTED, RUNNING, PENDING …"""
    exit_code: str
    eligible_s: int | None
    start_s: int | None
    end_s: int | None
    elapsed_s: int | None
    """None, as `suspended_s`, where sacct printed what cannot be read and nothing else says it."""
    suspended_s: int | None
    time_limit_s: int | None
    n_nodes: int
    nodes: str
    """As a hostlist expression; "" where none was assigned."""
    tres_requested: Mapping[str, float]
    tres_allocated: Mapping[str, float]
    admin_comment: str
    allocated_mgpu: int | None = None
    """Thousandths of GPUs that it holds. This and what follows slurm-gpudbd works out from the nodes."""
    gpu_type: str | None = None
    requested_mgpu: int | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """Return what no other run has: cluster, job id and submission."""
        return self[:3]

    @property
    def job(self) -> tuple[str, int]:
        """Return cluster and job id."""
        return self[:2]


class WaitingJob(NamedTuple):
    """A job that could start if there was room; an array whose tasks are not split off yet is one."""

    job_id: int
    eligible_s: int
    n_nodes: int
    """The upper end of a range."""
    site_factor: int
    """The part of its priority that a site sets; 0 where none does."""
    tres: Mapping[str, float] = MappingProxyType({})
    """What it asks for on the fewest nodes that it names, `node` among it; memory in MiB. Empty: not told."""


class SlurmctldHost(NamedTuple):
    """A host that slurmctld may run on."""

    name: str
    is_up: bool
    """Whether slurmctld answers there, be it in charge or waiting to be."""


class SlurmClient(Protocol):
    """Access to a running Slurm; every method raises SlurmError, with the reason, when it fails."""

    def ping(self) -> None:
        """Return where a slurmctld answers; raises SlurmError within seconds, while others wait long."""

    def controllers(self) -> Sequence[SlurmctldHost]:
        """The hosts of slurmctld, the primary one first; the first that is up is in charge."""

    def settings(self) -> SlurmSettings:
        """The configuration that slurmctld runs with."""

    def nodes(self) -> Sequence[SlurmNode]:
        """All nodes, in slurmctld's order."""

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        """Jobs in slurmctld's memory, all or the named raw ids; unknown ids are simply not returned."""

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        """Runs of all users that were pending, running or ended within [since, until], in no order.

        With `job_ids` (raw ids), only those jobs; others that slurmdbd adds (old array tasks) may come too.

        Read from slurmdbd; empty where the cluster has no accounting storage. A job that was held all along
        is not in it before it is released.
        """

    def set_weight(self, nodes: Iterable[str], weight: int) -> None:
        """Give nodes this Weight in one call, as root or SlurmUser; slurmctld forgets it when reconfigured.

        22.05 forgets it when it is restarted too. Of several nodes some may have it though it raises.
        """

    def waiting(self) -> Sequence[WaitingJob] | None:
        """Jobs that are eligible and not held; None where PriorityType knows no factors."""

    def set_site_factor(self, job_ids: Iterable[int], points: int) -> None:
        """Have these jobs' priority be so much more, as root; it holds until they start, restarts or not.

        Of several jobs others have it though it raises for one, such as one that started meanwhile.
        """
