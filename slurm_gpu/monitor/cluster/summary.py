"""Summarise a cluster: GPUs by type, nodes by state, reasons for waiting, and the job of each GPU.

All functions are pure. Both the terminal and the pages use this module.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu.monitor.cluster.reasons import short
from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterJob, ClusterNode, ClusterState

PENDING = "PENDING"
_RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """The GPUs of one type, each of which is allocated, free or out of service."""

    name: str
    """The name of the type; empty if Slurm reports no type."""
    total: int
    allocated: int
    free: int
    out_of_service: int
    next_free_s: int | None
    """The earliest time at which a job's time limit frees an allocated GPU; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOfNodes:
    """The nodes in one Slurm state, in Slurm's order; `reason` is set by an operator or Slurm."""

    state: str
    reason: str | None
    in_service: bool
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """The jobs that are pending for one of Slurm's reasons. Each array task counts as a job."""

    reason: str
    n_jobs: int
    n_gpus: float | None
    """The number of GPUs that these jobs request; None if the number is unknown for any of them."""
    next_start_s: int | None
    """The time at which Slurm expects the first of these jobs to start; None if it has no estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """GPUs of one node or of several equal nodes, in Slurm's numbering, and their job."""

    nodes: Sequence[str]
    state: str
    reason: str | None
    in_service: bool
    gpu_type: str
    """The types of the GPUs, joined by `/`."""
    gpus: Sequence[int]
    job: ClusterJob | None
    """The job on the GPUs; None if there is none, or if it is unknown."""
    shared: bool = False
    """Whether only some shards of the GPUs are allocated to the job."""
    n_free: int = 0
    """The number of free GPUs among GPUs without a known job; 0 on a node that is out of service."""

    @property
    def frees_s(self) -> int | None:
        """Return the time at which the time limit ends the job; None if unknown."""
        return self.job.end_s if self.job is not None and self.job.state == _RUNNING else None


def gpu_types(state: ClusterState) -> list[GpuType]:
    """Return the types of GPUs, sorted by name."""
    jobs = {job.job_id: job for job in state.jobs}
    total, allocated, free = Counter[str](), Counter[str](), Counter[str]()
    ends: dict[str, float] = {}
    for node in state.nodes:
        total.update(node.gpus)
        types, ends_here = _types(node), _ends(node, jobs)
        here = Counter(types[position] for position in ends_here if position < len(types))
        if node.in_service:
            # Slurm reports the number of allocated GPUs even if it does not report their positions.
            if len(node.gpus) == 1:
                here = Counter({kind: n - node.gpus_free for kind, n in node.gpus.items()})
            free.update({kind: n - here[kind] for kind, n in node.gpus.items()})
        allocated.update(here)
        for position, end_s in ends_here.items():
            if node.in_service and position < len(types):
                kind = types[position]
                ends[kind] = min(ends.get(kind, math.inf), end_s)
    return [
        GpuType(
            name=kind,
            total=n,
            allocated=allocated[kind],
            free=free[kind],
            out_of_service=n - allocated[kind] - free[kind],
            next_free_s=int(end_s) if (end_s := ends.get(kind, math.inf)) < math.inf else None,
        )
        for kind, n in sorted(total.items())
    ]


def node_states(state: ClusterState) -> list[StateOfNodes]:
    """Return one entry per state and reason: out-of-service nodes first, then the most frequent states."""
    found: dict[tuple[bool, str, str | None], list[str]] = {}
    for node in state.nodes:
        reason = None if node.in_service else node.reason
        found.setdefault((node.in_service, node.state, reason), []).append(node.node)
    return [
        StateOfNodes(in_service=in_service, state=word, reason=reason, nodes=names)
        for (in_service, word, reason), names in sorted(
            found.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1], item[0][2] or "")
        )
    ]


def wait_reasons(state: ClusterState) -> list[WaitReason]:
    """Return the reasons why jobs wait, with the most frequent one first."""
    found: dict[str, list[ClusterJob]] = {}
    for job in state.jobs:
        if job.state == PENDING:
            found.setdefault(short(job.reason), []).append(job)
    reasons = [
        WaitReason(
            reason=reason,
            n_jobs=sum(job.n_tasks for job in jobs),
            n_gpus=gpus_in_all([None if job.n_gpus is None else job.n_tasks * job.n_gpus for job in jobs]),
            next_start_s=min((job.start_s for job in jobs if job.start_s is not None), default=None),
        )
        for reason, jobs in found.items()
    ]
    return sorted(reasons, key=lambda item: (-item.n_jobs, item.reason))


def gpus_in_all(amounts: Sequence[float | None]) -> float | None:
    """Return the sum of the amounts; None if one of them is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return math.fsum(known) if len(known) == len(amounts) else None


def in_partition(state: ClusterState, partition: str) -> ClusterState:
    """Return the partition's nodes, the pending jobs that requested the partition, and all running jobs."""
    return replace(
        state,
        nodes=[node for node in state.nodes if partition in node.partitions],
        jobs=[job for job in state.jobs if job.state != PENDING or partition in job.partition.split(",")],
    )


def gpu_rows(state: ClusterState) -> list[GpuRow]:
    """Return the rows of all nodes with GPUs, in order: one per job, and one for unallocated GPUs."""
    jobs = {job.job_id: job for job in state.jobs}
    return [row for node in state.nodes if node.gpus for row in _rows(node, jobs)]


def folded(rows: Iterable[GpuRow]) -> list[GpuRow]:
    """Combine nodes with equal rows, at the position of the first of these nodes."""
    by_node: dict[str, list[GpuRow]] = {}
    for row in rows:
        for name in row.nodes:
            by_node.setdefault(name, []).append(row)
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, own in by_node.items():
        what = tuple(
            (
                row.state,
                row.reason,
                row.gpu_type,
                row.gpus,
                row.job and row.job.job_id,
                row.shared,
                row.n_free,
            )
            for row in own
        )
        alike.setdefault(what, []).append(name)
    return [replace(row, nodes=tuple(names)) for names in alike.values() for row in by_node[names[0]]]


def with_whole_gpus(state: ClusterState) -> ClusterState:
    """Return the state with whole GPUs for jobs to which all shards of their GPUs are allocated."""
    n_positions = Counter[int]()
    for node in state.nodes:
        for holder in node.holders:
            n_positions[holder.job_id] += len(holder.gpus) + len(holder.shared_gpus)
    whole = {
        job.job_id for job in state.jobs if job.n_gpus is not None and job.n_gpus >= n_positions[job.job_id]
    }

    def shown(holder: ClusterAllocation) -> ClusterAllocation:
        gpus = sorted((*holder.gpus, *holder.shared_gpus))
        has_shards = holder.shared_gpus and holder.job_id in whole
        return replace(holder, gpus=gpus, shared_gpus=()) if has_shards else holder

    return replace(
        state, nodes=[replace(node, holders=[shown(one) for one in node.holders]) for node in state.nodes]
    )


def _rows(node: ClusterNode, jobs: Mapping[int, ClusterJob]) -> Iterator[GpuRow]:
    types = _types(node)

    def row(gpus: Sequence[int], job: ClusterJob | None, shared: bool = False, n_free: int = 0) -> GpuRow:
        kinds = dict.fromkeys(types[position] for position in gpus if position < len(types))
        return GpuRow(
            nodes=(node.node,),
            state=node.state,
            reason=node.reason,
            in_service=node.in_service,
            gpu_type="/".join(kinds),
            gpus=tuple(gpus),
            job=job,
            shared=shared,
            n_free=n_free,
        )

    taken: set[int] = set()
    for holder in node.holders:
        job = jobs.get(holder.job_id)
        if job is None:
            continue
        if holder.gpus:
            yield row(holder.gpus, job)
        if holder.shared_gpus:
            yield row(holder.shared_gpus, job, shared=True)
        taken.update(holder.gpus, holder.shared_gpus)
    if left := [position for position in range(len(types)) if position not in taken]:
        yield row(left, None, n_free=min(node.gpus_free, len(left)))


def _types(node: ClusterNode) -> list[str]:
    """Return the type of the GPU at each position. Slurm numbers GPUs in the order of the listed types."""
    return [kind for kind, n in node.gpus.items() for _ in range(n)]


def _ends(node: ClusterNode, jobs: Mapping[int, ClusterJob]) -> dict[int, float]:
    """Return the latest end of the jobs at each allocated position; infinity if a job has no time limit."""
    ends: dict[int, float] = {}
    for holder in node.holders:
        job = jobs.get(holder.job_id)
        end_s = job.end_s if job is not None and job.state == _RUNNING else None
        for position in (*holder.gpus, *holder.shared_gpus):
            ends[position] = max(ends.get(position, 0.0), math.inf if end_s is None else end_s)
    return ends
