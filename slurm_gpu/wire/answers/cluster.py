"""What GET /v1/cluster answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu.wire import Live


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A job that waits or holds nodes. `full` is False for another user's, of which `name` is None."""

    id: str
    """As users know it: 17, 17_3 or 17+1."""
    job_id: int
    full: bool
    user: str
    account: str
    partition: str
    qos: str
    state: str
    reason: str
    """Slurm's word for why it waits, such as Resources."""
    n_tasks: int
    """Of an array that is not yet split: so many jobs are this one."""
    n_nodes: int
    n_gpus: float | None
    """GPUs that one task requests in total; shards count as fractions. None if unknown."""
    submit_s: int | None
    eligible_s: int | None
    start_s: int | None
    """Of a waiting one, when Slurm expects it to start; None where it has not said."""
    end_s: int | None
    """When its time limit ends it."""
    time_limit_s: int | None
    name: str | None
    uid: int | None = None
    """None where an older slurm-gpudbd does not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHolder:
    """A job's part of a node: positions of whole GPUs, and of those that it has shards of."""

    job_id: int
    gpus: Sequence[int]
    shared_gpus: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node, as slurmctld has it."""

    node: str
    state: str
    """Words in lower case, joined by +."""
    reason: str | None
    in_service: bool
    partitions: Sequence[str]
    zone: str | None
    server_type: str | None
    gpus: Mapping[str, int]
    """By type."""
    gpus_free: int
    cpus: int
    cpus_allocated: int
    memory_mib: int
    memory_allocated_mib: int
    holders: Sequence[ClusterHolder]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All nodes and jobs of a moment."""

    as_of_s: float
    """When slurmctld said so."""
    nodes: Sequence[ClusterNode]
    jobs: Sequence[ClusterJob]


def live_of_slurm(cluster: ClusterState, live: Mapping[str, Live]) -> dict[str, Live]:
    """Live values with those jobs alone that Slurm has on the node that tells of them.

    A machine without Slurm counts jobs by itself, and a number alone does not say whose job it is.
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
