"""A cluster in a few rows: GPUs by type, nodes by state, why jobs wait, and who holds which GPU until when.

Pure functions of ClusterState, for the terminal and for pages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu.monitor.cluster.reasons import short
from slurm_gpu.wire.answers.cluster import ClusterHolder, ClusterJob, ClusterNode, ClusterState

_WAITING = "PENDING"
_RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """All GPUs of one type: each is held, free, or neither since its node takes no jobs."""

    name: str
    """"" where Slurm knows no type."""
    total: int
    held: int
    free: int
    out_of_service: int
    next_free_s: int | None
    """When the first of those held is free, by time limits; None where none is held, or none has a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOfNodes:
    """Nodes in one state of Slurm's, in its order; `reason` as an operator or Slurm wrote it."""

    state: str
    reason: str | None
    in_service: bool
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """Jobs that wait for one reason, by Slurm's word for it; a task of an array is a job."""

    reason: str
    n_jobs: int
    n_gpus: float | None
    """None where that of one of them is not known."""
    next_start_s: int | None
    """When Slurm expects the first of them to start; None where it has not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """GPUs, in Slurm's numbering, of nodes that are alike, and who holds them."""

    nodes: Sequence[str]
    state: str
    reason: str | None
    in_service: bool
    gpu_type: str
    """Types joined by `/`."""
    gpus: Sequence[int]
    job: ClusterJob | None
    """None: nobody."""
    shared: bool = False
    """The job has some shards of them, and others may have the rest."""
    n_free: int = 0
    """Of those that no job is told to hold so many are free: none on a node that takes no jobs."""

    @property
    def frees_s(self) -> int | None:
        """When the job's time limit ends it; None where nothing is known."""
        return self.job.end_s if self.job is not None and self.job.state == _RUNNING else None


def gpu_types(state: ClusterState) -> list[GpuType]:
    """By type, in the order of names."""
    jobs = {job.job_id: job for job in state.jobs}
    total, held, free = Counter[str](), Counter[str](), Counter[str]()
    ends: dict[str, float] = {}
    for node in state.nodes:
        total.update(node.gpus)
        types, ends_here = _types(node), _ends(node, jobs)
        here = Counter(types[position] for position in ends_here if position < len(types))
        if node.in_service:
            if len(node.gpus) == 1:  # Slurm counts what is held also where it tells no positions
                here = Counter({kind: n - node.gpus_free for kind, n in node.gpus.items()})
            free.update({kind: n - here[kind] for kind, n in node.gpus.items()})
        held.update(here)
        for position, end_s in ends_here.items():
            if node.in_service and position < len(types):
                kind = types[position]
                ends[kind] = min(ends.get(kind, math.inf), end_s)
    return [
        GpuType(
            name=kind,
            total=n,
            held=held[kind],
            free=free[kind],
            out_of_service=n - held[kind] - free[kind],
            next_free_s=int(end_s) if (end_s := ends.get(kind, math.inf)) < math.inf else None,
        )
        for kind, n in sorted(total.items())
    ]


def node_states(state: ClusterState) -> list[StateOfNodes]:
    """Those out of service first, then the most frequent; one entry for each reason."""
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
    """Why jobs wait, the most frequent first."""
    found: dict[str, list[ClusterJob]] = {}
    for job in state.jobs:
        if job.state == _WAITING:
            found.setdefault(short(job.reason), []).append(job)
    told = [
        WaitReason(
            reason=reason,
            n_jobs=sum(job.n_tasks for job in jobs),
            n_gpus=gpus_in_all([None if job.n_gpus is None else job.n_tasks * job.n_gpus for job in jobs]),
            next_start_s=min((job.start_s for job in jobs if job.start_s is not None), default=None),
        )
        for reason, jobs in found.items()
    ]
    return sorted(told, key=lambda item: (-item.n_jobs, item.reason))


def gpus_in_all(amounts: Sequence[float | None]) -> float | None:
    """Return the sum, None where one of the amounts is not known."""
    known = [amount for amount in amounts if amount is not None]
    return math.fsum(known) if len(known) == len(amounts) else None


def in_partition(state: ClusterState, partition: str) -> ClusterState:
    """Its nodes, the jobs that wait for it (it may be one of several that they name), and all that run."""
    return replace(
        state,
        nodes=[node for node in state.nodes if partition in node.partitions],
        jobs=[job for job in state.jobs if job.state != _WAITING or partition in job.partition.split(",")],
    )


def gpu_rows(state: ClusterState) -> list[GpuRow]:
    """For each node with GPUs, in their order, one row for each job there, and one for what nobody holds."""
    jobs = {job.job_id: job for job in state.jobs}
    return [row for node in state.nodes if node.gpus for row in _rows(node, jobs)]


def folded(rows: Iterable[GpuRow]) -> list[GpuRow]:
    """The same with nodes that are alike in all their rows as one, where the first of them stood."""
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


def _has_all_of_them(job: ClusterJob, holder: ClusterHolder) -> bool:
    """Whether a job has every shard of GPUs that it has shards of; it has as many on each of its nodes."""
    if job.n_gpus is None:
        return False
    in_shards = job.n_gpus - job.n_nodes * len(holder.gpus)
    return in_shards >= job.n_nodes * len(holder.shared_gpus)


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
            yield row(holder.shared_gpus, job, shared=not _has_all_of_them(job, holder))
        taken.update(holder.gpus, holder.shared_gpus)
    if left := [position for position in range(len(types)) if position not in taken]:
        yield row(left, None, n_free=min(node.gpus_free, len(left)))


def _types(node: ClusterNode) -> list[str]:
    """The type of each position: Slurm numbers a node's GPUs in the order in which it names their types."""
    return [kind for kind, n in node.gpus.items() for _ in range(n)]


def _ends(node: ClusterNode, jobs: Mapping[int, ClusterJob]) -> dict[int, float]:
    """By position that is held when the last of its holders has to be gone, infinity without a limit."""
    ends: dict[int, float] = {}
    for holder in node.holders:
        job = jobs.get(holder.job_id)
        end_s = job.end_s if job is not None and job.state == _RUNNING else None
        for position in (*holder.gpus, *holder.shared_gpus):
            ends[position] = max(ends.get(position, 0.0), math.inf if end_s is None else end_s)
    return ends
