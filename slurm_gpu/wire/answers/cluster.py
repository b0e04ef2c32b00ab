"""The answer to GET /v1/cluster; docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu.wire import Live


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A pending or running job. `full` is False for another user's job, whose `name` is None."""

    id: str
    """The job ID as Slurm prints it: 17, 17_3 or 17+1."""
    job_id: int
    full: bool
    user: str
    account: str
    partition: str
    qos: str
    state: str
    reason: str
    """Slurm's reason for a pending job, such as Resources."""
    n_tasks: int
    """The number of tasks of an array that Slurm has not split yet; 1 otherwise."""
    n_nodes: int
    n_gpus: float | None
    """The total number of GPUs that one task requests, with shards as fractions; None if unknown."""
    submit_s: int | None
    eligible_s: int | None
    start_s: int | None
    """The start time; for a pending job, the start that Slurm expects, or None if it has no estimate."""
    end_s: int | None
    """The end according to the time limit."""
    time_limit_s: int | None
    name: str | None
    uid: int | None = None
    """The user's uid; None if the answer is from an older slurm-gpudbd."""
    priority: int | None = None
    """Slurm considers pending jobs with a higher priority first; 0 if the job is held, None if unknown."""
    dependency: str | None = None
    """The dependencies that are not fulfilled yet, as squeue prints them; None if not `full`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAllocation:
    """A job's allocation on a node: the indices of its whole GPUs and of GPUs on which it has shards."""

    job_id: int
    gpus: Sequence[int]
    shared_gpus: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node according to slurmctld."""

    node: str
    state: str
    """The words of the state in lower case, joined by +."""
    reason: str | None
    in_service: bool
    partitions: Sequence[str]
    zone: str | None
    server_type: str | None
    gpus: Mapping[str, int]
    """The number of GPUs by type."""
    gpus_free: int
    cpus: int
    cpus_allocated: int
    memory_mib: int
    memory_allocated_mib: int
    holders: Sequence[ClusterAllocation]
    shards_per_gpu: int | None = None
    """The number of shards of one GPU; None without shards, or from an older slurm-gpudbd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The state of all nodes and jobs at one point in time."""

    as_of_s: float
    """The time of slurmctld's report."""
    nodes: Sequence[ClusterNode]
    jobs: Sequence[ClusterJob]


def live_of_slurm(cluster: ClusterState, live: Mapping[str, Live]) -> dict[str, Live]:
    """Return live values without jobs that Slurm does not run on the reporting node.

    A machine without Slurm numbers its jobs itself, so its numbers can coincide with Slurm's job IDs.
    """
    here = {node.node: frozenset(holder.job_id for holder in node.holders) for node in cluster.nodes}
    return {name: _with_jobs(values, here.get(name, frozenset())) for name, values in live.items()}


def _with_jobs(values: Live, here: frozenset[int]) -> Live:
    strange = {
        uuid: replace(device, jobs=tuple(job for job in device.jobs if job in here))
        for uuid, device in values.devices.items()
        if not here.issuperset(device.jobs)
    }
    return replace(values, devices={**values.devices, **strange}) if strange else values
