"""Find the squares of each job.

Slurm reports how many GPUs each job has on each node, and slurm-gpud reports which devices these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.monitor.cluster.layout import NodeSquares, SquareLayout
from slurm_gpu.monitor.cluster.summary import with_whole_gpus
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterState

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SquareAllocation:
    """The squares of each job, in order, and the jobs of each square."""

    whole: Mapping[int, Sequence[int]]
    shared: Mapping[int, Sequence[int]]
    jobs_at: Mapping[int, Sequence[int]]
    """The jobs on each square; squares without a job are omitted."""

    def is_shared(self, square: int) -> bool:
        """Return whether a job on the square has only part of the GPU."""
        return any(square in self.shared.get(job, ()) for job in self.jobs_at.get(square, ()))


def find_allocation(
    cluster: ClusterState, live: Mapping[str, Live], layout: SquareLayout
) -> SquareAllocation:
    """Find the squares of each job on the nodes of a layout.

    Slurm numbers GPUs according to its own configuration. Slurm's positions are therefore used only if no
    slurm-gpud reports the devices of a job, for example in the job's first seconds.
    """
    whole: dict[int, list[int]] = {}
    shared: dict[int, list[int]] = {}
    jobs_at: dict[int, list[int]] = {}
    by_name = {node.node: node for node in with_whole_gpus(cluster).nodes}
    for place in layout.nodes:
        node = by_name.get(place.node)
        if node is None or not node.holders:
            continue
        reported = _reported(place, live.get(place.node))
        taken: set[int] = set()
        for holder in node.holders:
            if holder.gpus:
                taken.update(reported.get(holder.job_id, ()))
        for holder in node.holders:
            ours = reported.get(holder.job_id, ())
            if holder.gpus:
                found = _fill(ours, len(holder.gpus), holder.gpus, place, taken)
                _add(holder.job_id, found, whole, jobs_at)
                ours = [square for square in ours if square not in found]
            if holder.shared_gpus:
                found = _fill_shared(ours, holder, place)
                _add(holder.job_id, found, shared, jobs_at)
    return SquareAllocation(
        {job: sorted(squares) for job, squares in whole.items()},
        {job: sorted(squares) for job, squares in shared.items()},
        jobs_at,
    )


def ranges(squares: Iterable[int]) -> Ranges:
    """Return (first, last) for each contiguous range of sorted squares."""
    found: list[tuple[int, int]] = []
    for square in squares:
        if found and found[-1][1] == square - 1:
            found[-1] = found[-1][0], square
        else:
            found.append((square, square))
    return tuple(found)


def _add(job: int, squares: Iterable[int], of: dict[int, list[int]], jobs_at: dict[int, list[int]]) -> None:
    for square in squares:
        of.setdefault(job, []).append(square)
        jobs_at.setdefault(square, []).append(job)


def _reported(place: NodeSquares, live: Live | None) -> dict[int, list[int]]:
    """Return the squares that slurm-gpud reports for each job."""
    found: dict[int, list[int]] = {}
    if live is not None:
        for at, square in enumerate(place.squares):
            value = None if square.uuid is None else live.devices.get(square.uuid)
            for job in () if value is None else value.jobs:
                found.setdefault(job, []).append(place.first + at)
    return found


def _fill(
    reported: Sequence[int], wanted: int, positions: Iterable[int], place: NodeSquares, taken: set[int]
) -> list[int]:
    """Choose `wanted` squares: first from slurm-gpud's report, then from Slurm's positions, then others."""
    found = list(reported[:wanted])
    theirs = [place.by_position[at] for at in positions if at < len(place.by_position)]
    for at in (*theirs, *range(len(place.squares))):
        if len(found) == wanted:
            break
        if (square := place.first + at) not in taken:
            found.append(square)
            taken.add(square)
    return found


def _fill_shared(reported: Sequence[int], holder: ClusterAllocation, place: NodeSquares) -> list[int]:
    """Choose squares of shareable GPUs, first from slurm-gpud's report, then from Slurm's positions."""
    found = list(reported[: len(holder.shared_gpus)])
    for position in holder.shared_gpus:
        if len(found) == len(holder.shared_gpus):
            break
        if position < len(place.by_position):
            square = place.first + place.by_position[position]
            if square not in found:
                found.append(square)
    return found
