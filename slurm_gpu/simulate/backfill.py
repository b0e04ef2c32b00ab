"""Run EASY backfill: jobs may start early if they do not delay the first blocked job of a partition."""

from __future__ import annotations

import heapq
import math

from slurm_gpu.simulate.blocked_shapes import BlockedShapes
from slurm_gpu.simulate.lazy_heaps import Key
from slurm_gpu.simulate.prospects import Prospects
from slurm_gpu.simulate.queue import JobClass, KindIterator
from slurm_gpu.simulate.reservation import BackfillReservation
from slurm_gpu.simulate.starter import Starter, StartResult


class BackfillPass:
    """One pass over the queue in the order of priority.

    In each partition, the pass starts the jobs in order until one is blocked. After that job, the pass
    examines only shapes for which there may be room.
    """

    def __init__(
        self, starter: Starter, prospects: Prospects, blocked_shapes: BlockedShapes, now_s: float
    ) -> None:
        self._starter, self._queue, self._prospects, self._now_s = starter, starter.queue, prospects, now_s
        self._heap: list[tuple[Key, int, KindIterator | None]] = []
        """Entries: a job's key, its kind, and its shape's other kinds (None for a partition's first job)."""
        self._promised: dict[int, BackfillReservation] = {}
        """Reservations by partition."""
        self._blocked_shapes = blocked_shapes
        blocked_shapes.begin()

    def run(self, depth: int | None) -> None:
        """Run the pass, examining at most `depth` jobs, or all jobs if `depth` is None."""
        for partition in range(len(self._starter.state.cluster.partitions)):
            self._push_first_of(partition)
        examined = 0
        while self._heap:
            (_, job), index, others = heapq.heappop(self._heap)
            kind = self._queue.kinds[index]
            known = self._blocked_shapes.covers(kind.shape, self._now_s + kind.limit_s)
            if known and self._has_promise(kind.shape):  # the job's limits make no difference here
                self._push_next_of(others)
                continue
            if not self._starter.park(job, self._now_s):
                if not known and examined == depth:
                    return
                examined += not known
                if known or not self._start(job, kind):
                    self._is_blocked(kind, others)
                    continue
            if others is None:
                self._push_first_of(self._queue.shapes[kind.shape].partition)
            else:
                others.again(index)
                self._push_next_of(others)

    def _start(self, job: int, kind: JobClass) -> bool:
        tried = self._starter.try_to_start(job, self._now_s, None, self._promised.values())
        if tried is StartResult.STARTED:
            return True
        # The job's time limit matters only for the choice of reservations that the job would outlast.
        outlasted = [one.at_s for one in self._promised.values() if one.at_s < self._now_s + kind.limit_s]
        self._blocked_shapes.add(
            kind.shape, max(outlasted, default=-math.inf), larger_too=tried is StartResult.NO_ROOM
        )
        return False

    def _is_blocked(self, kind: JobClass, others: KindIterator | None) -> None:
        partition = self._queue.shapes[kind.shape].partition
        if others is not None:
            self._push_next_of(others)
            if partition not in self._promised:
                self._promise(kind.shape)
            return
        behind = [shape for shape in self._queue.active if self._queue.shapes[shape].partition == partition]
        startable = [shape for shape in behind if self._starter.may_start(shape)]
        if not startable and not self._heap:
            return  # no other job could delay this one
        # If this job gets no reservation, the next job may get one, whether or not it may fit.
        for shape in startable if self._promise(kind.shape) else behind:
            self._push_next_of(self._queue.kinds_of(shape))

    def _promise(self, shape_index: int) -> bool:
        """Reserve nodes for the first blocked job; return False if its start cannot be predicted."""
        shape, state = self._queue.shapes[shape_index], self._starter.state
        when = self._prospects.when(shape.request, state.room(shape.partition, shape.request.gpu_type))
        reservation = BackfillReservation.of(state, shape.request, when, self._now_s)
        if reservation is None:
            return False
        self._promised[shape.partition] = reservation
        return True

    def _push_first_of(self, partition: int) -> None:
        first = self._queue.first_of_partition(partition)
        if first is not None:
            heapq.heappush(self._heap, (first, self._queue.kind_of(first[1]), None))

    def _push_next_of(self, others: KindIterator | None) -> None:
        if others is None:
            return
        shortest_end_s = self._now_s + self._queue.shortest_s[others.shape]
        if self._has_promise(others.shape) and self._blocked_shapes.covers(others.shape, shortest_end_s):
            return
        following = others.next()
        if following is not None:
            heapq.heappush(self._heap, (*following, others))

    def _has_promise(self, shape: int) -> bool:
        """Return whether the partition of the shape has a reservation."""
        return self._queue.shapes[shape].partition in self._promised
