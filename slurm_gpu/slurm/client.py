"""Define SlurmClient, the protocol that every Slurm backend implements, and the types that it returns.

Times are UTC epoch seconds; a time is None if Slurm prints Unknown or None. Memory is in MiB. GPU amounts are
in thousandths of a GPU (`mgpu`), so that whole GPUs and shards can be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from slurm_gpu.slurm.tres import SharesPerGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The part of slurm.conf that slurm-gpu reads; `raw` contains all settings as scontrol prints them."""

    cluster: str
    version: str
    slurm_user: str
    slurm_user_uid: int
    conf_path: str
    raw: Mapping[str, str] = field(repr=False)


def has_slurmdbd(settings: SlurmSettings) -> bool:
    """Return whether this Slurm stores accounts, QOS and limits."""
    return settings.raw.get("AccountingStorageType", "").endswith("slurmdbd")


def has_lua_plugin(settings: SlurmSettings) -> bool:
    """Return whether slurmctld calls job_submit.lua. In JobSubmitPlugins, `job_submit/` can be omitted."""
    plugins = settings.raw.get("JobSubmitPlugins", "").split(",")
    return "lua" in (plugin.removeprefix("job_submit/") for plugin in plugins)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """The current state of a node in slurmctld."""

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
    """GPUs by type; "" for untyped ones."""
    gpus_allocated: Mapping[str, int]
    shards: int
    shards_allocated: int
    features: Sequence[str]
    partitions: Sequence[str]
    host: str = ""
    """NodeHostName, the hostname on the node itself; "" if unknown."""
    weight: int = 1
    """Slurm prefers nodes with a low weight."""
    mps: int = 0
    mps_allocated: int = 0
    cpus_effective: int | None = None
    """CPUs that jobs may use; None if unknown."""
    sockets: int | None = None
    cores: int | None = None
    """The cores of all sockets together; None if unknown."""
    unaccounted: Sequence[str] = ()
    """GRES of the node (gpu, shard, mps) that AccountingStorageTRES lacks, so that no TRES contains them."""

    @property
    def n_gpus(self) -> int:
        """Return the number of GPUs of the node."""
        return sum(self.gpus.values())

    @property
    def shards_per_gpu(self) -> int | None:
        """Return the number of shards of one GPU; None if the node has no shards."""
        return self.per_gpu.shard

    @property
    def per_gpu(self) -> SharesPerGpu:
        """Return the numbers of shards and MPS per GPU."""
        n = self.n_gpus
        shard, mps = (count // n if count and n else None for count in (self.shards, self.mps))
        return SharesPerGpu(shard, mps)

    @property
    def shared_mgpu(self) -> int:
        """Return the amount of GPUs allocated as shards and MPS, in thousandths of a GPU, rounded up."""
        allocated = ((self.shards_allocated, self.per_gpu.shard), (self.mps_allocated, self.per_gpu.mps))
        return sum(-(-count * 1000 // one_gpu) for count, one_gpu in allocated if one_gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job in slurmctld's memory: pending, running, or ended within MinJobAge.

    Pending tasks of an array that Slurm has not split off are one entry with `n_tasks` > 1.
    """

    job_id: int
    array_job_id: int | None
    array_task: str | None
    """Task id of a split-off task, or an expression ("0-9%4") for the tasks that are not split off."""
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
    """The start time; for a pending job, the start that Slurm expects, or None if it has no estimate."""
    end_s: int | None
    """The end time; for a job that has not ended, the end of its time limit."""
    time_limit_s: int | None
    n_nodes: int
    nodes: Sequence[str]
    """The job's current nodes, or its last nodes if it has ended.

    Nodes that the job released in a resize, or that it has already left while COMPLETING, are not included.
    """
    tres_requested: Mapping[str, float]
    """Totals by TRES name, memory in MiB: {"cpu": 8, "mem": 65536, "gres/gpu": 2, "gres/gpu:a100": 2}.

    In Slurm 22.05, this is the allocation once the job has started: Slurm then no longer reports the request.
    """
    tres_allocated: Mapping[str, float]
    gpu_index: Mapping[str, Mapping[str, Sequence[int]]]
    """Allocated positions by node and gres: {"n1": {"gpu": [0, 1]}}, for shards {"n1": {"shard": [3]}}."""
    gres_per_node: str
    """TresPerNode or TresPerJob as printed by Slurm, for displaying the request."""
    features: str
    admin_comment: str
    most_nodes: int | None = None
    """Upper end of the range of nodes (--nodes=1-3) that a pending job requests; None if not a range."""
    tres_per_node: str = ""
    """TresPerNode as printed, such as gres:gpu:2."""
    gres_per_task: str = ""
    """TresPerTask or TresPerSocket as printed. Only Slurm can determine the number of tasks and sockets."""
    het_offset: int | None = None
    """The number of this component in the heterogeneous job `het_job_id`."""
    resized_s: int | None = None
    """The time when the job's nodes last changed, by a resize or a node failure; None if never."""
    priority: int | None = None
    """Slurm considers pending jobs with a higher priority first; 0 if the job is held."""
    dependency: str = ""
    """The dependencies that are not fulfilled yet, as scontrol prints them: "afterok:12(unfulfilled)"."""

    @property
    def label(self) -> str:
        """Return the job ID that users see: 17, 17_3 for an array task, 17+1 for a het component."""
        if self.het_job_id is not None and self.het_offset is not None:
            return f"{self.het_job_id}+{self.het_offset}"
        if self.array_job_id is not None and self.array_task is not None:
            return f"{self.array_job_id}_{self.array_task}"
        return str(self.job_id)


class AccountingRun(NamedTuple):
    """One row of Slurm's accounting: one execution of a job, since each requeue has its own row.

    The fields are the imported columns of the table `run`, beginning with the key. The type is a tuple
    because the first import can create a million instances.
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
    """The elapsed time; None if sacct's value is unreadable and other columns do not determine it."""
    suspended_s: int | None
    time_limit_s: int | None
    n_nodes: int
    nodes: str
    """A hostlist expression; "" if no node was assigned."""
    tres_requested: Mapping[str, float]
    tres_allocated: Mapping[str, float]
    admin_comment: str
    allocated_mgpu: int | None = None
    """In thousandths of a GPU. slurm-gpudbd derives this field and the next two from the nodes."""
    gpu_type: str | None = None
    requested_mgpu: int | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """Return the unique key: cluster, job ID and submit time."""
        return self[:3]

    @property
    def job(self) -> tuple[str, int]:
        """Return cluster and job ID."""
        return self[:2]


class WaitingJob(NamedTuple):
    """A job that waits only for resources. Pending tasks of an array that are not split off are one job."""

    job_id: int
    eligible_s: int
    n_nodes: int
    """The number of requested nodes, or the upper end of a range."""
    site_factor: int
    """The site factor of the job's priority; 0 if the site sets none."""
    tres: Mapping[str, float] = MappingProxyType({})
    """The TRES that the job requests for its smallest number of nodes, memory in MiB; empty if unknown."""


class SlurmctldHost(NamedTuple):
    """A host that slurm.conf lists for slurmctld."""

    name: str
    is_up: bool
    """Whether slurmctld answers on this host, as the active controller or as a backup."""


class SlurmClient(Protocol):
    """Access to a running Slurm. Every method raises SlurmError with the reason when it fails."""

    def ping(self) -> None:
        """Check that a slurmctld answers; raise SlurmError within seconds if none does.

        The other methods wait longer.
        """

    def controllers(self) -> Sequence[SlurmctldHost]:
        """Return the hosts of slurmctld, beginning with the primary. The first host that is up is active."""

    def settings(self) -> SlurmSettings:
        """Return the running configuration of slurmctld."""

    def nodes(self) -> Sequence[SlurmNode]:
        """Return all nodes, in slurmctld's order."""

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        """Return all jobs in slurmctld's memory, or only those with these raw ids. Ignore unknown ids."""

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        """Return the runs of all users that existed or ended within [since, until], unsorted.

        If `job_ids` (raw ids) are given, return only the runs of those jobs; slurmdbd may add runs of old
        array tasks.

        The runs come from slurmdbd; there are none if the cluster has no accounting storage. A job that was
        held since its submission is absent until it is released.
        """

    def set_weight(self, nodes: Iterable[str], weight: int) -> None:
        """Set the Weight of nodes in one call. The caller must be root or SlurmUser.

        slurmctld drops the weight when it is reconfigured; slurmctld 22.05 also drops it when it restarts.
        After an error, some of the nodes may have the new weight.
        """

    def waiting(self) -> Sequence[WaitingJob] | None:
        """Return the eligible jobs that are not held; None if PriorityType has no factors."""

    def set_site_factor(self, job_ids: Iterable[int], points: int) -> None:
        """Set the points that Slurm adds to the priority of jobs. The caller must be root.

        The points apply until the jobs start, even if slurmctld restarts. An error for one job, for example
        because it has just started, does not affect the others.
        """
