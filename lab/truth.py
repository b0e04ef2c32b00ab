"""The true use of a job's GPUs, from the lab's own timestamps and simgpu's schedules.

No value here comes from slurm-gpu or NVML, so records can be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab import hooks
from lab.layout import Layout
from lab.options import Gpu, Node
from lab.simgpu import truth
from lab.simgpu.truth import ProcessTruth, Usage


@dataclass(frozen=True)
class GpuShare:
    """One GPU in one interval in which the GPU or shards of it were allocated to a job."""

    gpu: Gpu
    restart: int
    start_s: float
    end_s: float
    # The uncertainty of start and end, as in `hooks.AllocatedInterval`.
    unsure_s: float
    usage: Usage

    @property
    def unsure_points(self) -> float:
        """Return the percentage points by which a mean may differ, since the exact start is unknown."""
        return 100 * self.unsure_s / (self.end_s - self.start_s)


def of_job(layout: Layout, nodes: Sequence[Node], job_id: int) -> list[GpuShare]:
    """Return the GPU use of raw job ``job_id`` in each closed interval, sorted by node, time and index.

    A job without GPUs has no shares; the use of an idle GPU is 0.
    """
    by_name = {node.name: node for node in nodes}
    processes = list(_all_ended(layout))
    shares = []
    for interval in hooks.intervals(layout, job_id):
        if interval.end_s is None:
            continue
        gpus = [by_name[interval.node].at_position(position) for position in interval.positions]
        for gpu in sorted(gpus, key=lambda gpu: gpu.nvml_index):
            usage = truth.usage(
                processes, job_id=job_id, uuid=gpu.uuid, start_s=interval.start_s, end_s=interval.end_s
            )
            shares.append(
                GpuShare(gpu, interval.restart, interval.start_s, interval.end_s, interval.unsure_s, usage)
            )
    return shares


def _all_ended(layout: Layout) -> Iterator[ProcessTruth]:
    """Return every process; the end of a killed process is the time at which the epilog found it dead.

    ``scancel`` kills processes that are not direct children of slurmstepd before they can record their end;
    with ``exec simgpu``, the end is exact.
    """
    for process in truth.load(layout.truth):
        ended = process
        if process.end_ns is None and process.job_id is not None:
            begin_s = process.points[0].time_ns / 1e9
            for interval in hooks.intervals(layout, process.job_id):
                end_s = interval.end_s
                if (
                    interval.node == process.node
                    and end_s is not None
                    and interval.start_s <= begin_s < end_s
                ):
                    ended = process.killed_at(end_s)
        yield ended


def mean_pct(shares: Sequence[GpuShare]) -> tuple[float, float] | None:
    """Return the means of (uGPUcore, uGPUmem) over these shares, weighted by seconds; None without GPUs."""
    seconds = [share.end_s - share.start_s for share in shares]
    total = sum(seconds)
    if total == 0:
        return None
    core = sum(s * share.usage.util_pct for s, share in zip(seconds, shares, strict=True))
    memory = sum(s * share.usage.mem_used_frac for s, share in zip(seconds, shares, strict=True))
    return core / total, 100 * memory / total
