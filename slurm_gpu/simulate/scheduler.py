"""Run passes over the queue, by strict priority or with backfill."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.simulate.backfill import BackfillPass
from slurm_gpu.simulate.blocked_shapes import BlockedShapes
from slurm_gpu.simulate.prospects import Prospects
from slurm_gpu.simulate.starter import Starter, StartResult
from slurm_gpu.simulate.state import Mask


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Settings of the scheduler; by default, all jobs are examined at every event."""

    backfill: bool = True
    backfill_every_s: float = 0.0
    """Seconds between backfill passes (bf_interval, 30 by default in Slurm); 0 for a pass at every event.

    Between passes only the first job of each partition may start.
    """
    depth: int | None = None
    """Maximum number of jobs examined per backfill pass (bf_max_job_test); None for all.

    Jobs that are delayed by limits or known to be blocked do not count.
    """


class Scheduler:
    """Runs passes over the queue."""

    def __init__(self, starter: Starter) -> None:
        self._starter, self._prospects = starter, Prospects(starter.state)
        self._blocked_shapes = BlockedShapes(starter.queue.shapes)

    def strict_pass(self, now_s: float) -> None:
        """Start the jobs of each partition in order until the first of them is blocked.

        Later jobs must not use the nodes of a partition with a blocked job.
        """
        starter, queue = self._starter, self._starter.queue
        starter.refresh()
        to_do = list(range(len(starter.state.cluster.partitions)))
        kept: Mask | None = None
        while to_do:
            firsts = [(key, p) for p in to_do if (key := queue.first_of_partition(p)) is not None]
            if not firsts:
                return
            (_, job), partition = min(firsts)
            if starter.park(job, now_s) or starter.try_to_start(job, now_s, kept, ()) is StartResult.STARTED:
                continue
            to_do.remove(partition)
            room = starter.state.room(partition, "")
            kept = room if kept is None else kept | room

    def backfill_pass(self, now_s: float, depth: int | None) -> None:
        """Start every job that can start without delaying the first blocked job of a partition."""
        self._starter.refresh()
        BackfillPass(self._starter, self._prospects, self._blocked_shapes, now_s).run(depth)
