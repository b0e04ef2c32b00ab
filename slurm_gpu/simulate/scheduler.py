"""When the queue is gone through, and how: by strict priority, or with backfill."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.simulate.backfill import BackfillPass
from slurm_gpu.simulate.blocked_shapes import TooMuch
from slurm_gpu.simulate.prospects import Prospects
from slurm_gpu.simulate.starter import Starter, Tried
from slurm_gpu.simulate.state import Mask


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How the queue is worked off; the defaults look at everything at every event."""

    backfill: bool = True
    backfill_every_s: float = 0.0
    """Slurm's bf_interval is 30; in between only the first of each partition may start. 0: at every event."""
    depth: int | None = None
    """How many jobs one backfill pass looks at (bf_max_job_test); None: all.

    Only those count that limits do not hinder and of which it is not known already that they are blocked.
    """


class Scheduler:
    """Goes through the queue, once each time that it is told to."""

    def __init__(self, starter: Starter) -> None:
        self._starter, self._prospects = starter, Prospects(starter.state)
        self._too_much = TooMuch(starter.queue.shapes)

    def strict_pass(self, now_s: float) -> None:
        """Start the first of each partition, again and again, until it is blocked.

        What comes after a blocked job keeps off the nodes of that job's partition.
        """
        starter, queue = self._starter, self._starter.queue
        starter.look_again()
        to_do = list(range(len(starter.state.cluster.partitions)))
        kept: Mask | None = None
        while to_do:
            firsts = [(key, p) for p in to_do if (key := queue.first_of_partition(p)) is not None]
            if not firsts:
                return
            (_, job), partition = min(firsts)
            if starter.park(job, now_s) or starter.try_to_start(job, now_s, kept, ()) is Tried.STARTED:
                continue
            to_do.remove(partition)
            room = starter.state.room(partition, "")
            kept = room if kept is None else kept | room

    def backfill_pass(self, now_s: float, depth: int | None) -> None:
        """Start whatever can start without being in the way of who is blocked first."""
        self._starter.look_again()
        BackfillPass(self._starter, self._prospects, self._too_much, now_s).run(depth)
