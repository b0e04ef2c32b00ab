"""EASY backfill: who is blocked first in a partition is promised nodes, of which others keep off."""

from __future__ import annotations

import heapq
import math

from slurm_gpu.simulate.blocked_shapes import TooMuch
from slurm_gpu.simulate.lazy_heaps import Key
from slurm_gpu.simulate.prospects import Prospects
from slurm_gpu.simulate.queue import InTurn, JobClass
from slurm_gpu.simulate.reservation import BackfillReservation
from slurm_gpu.simulate.starter import Starter, Tried


class BackfillPass:
    """One pass over all that waits, in the order of priority.

    In each partition it goes from first job to first job until one is blocked; behind that one it looks only
    at shapes that may have room.
    """

    def __init__(self, starter: Starter, prospects: Prospects, too_much: TooMuch, now_s: float) -> None:
        self._starter, self._queue, self._prospects, self._now_s = starter, starter.queue, prospects, now_s
        self._turns: list[tuple[Key, int, InTurn | None]] = []
        """(key of a job, its kind, the other kinds of its shape; None for the first of a partition)."""
        self._promised: dict[int, BackfillReservation] = {}
        """By partition."""
        self._too_much = too_much
        too_much.begin()

    def run(self, depth: int | None) -> None:
        """Look at so many jobs, or at all."""
        for partition in range(len(self._starter.state.cluster.partitions)):
            self._push_first_of(partition)
        looked_at = 0
        while self._turns:
            (_, job), index, others = heapq.heappop(self._turns)
            kind = self._queue.kinds[index]
            known = self._too_much.covers(kind.shape, self._now_s + kind.limit_s)
            if known and self._has_promise(kind.shape):  # then it makes no difference what its limits say
                self._push_next_of(others)
                continue
            if not self._starter.park(job, self._now_s):
                if not known and looked_at == depth:
                    return
                looked_at += not known
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
        if tried is Tried.STARTED:
            return True
        # What decided was not its time limit, but which of the promised moments it would outlast.
        outlasted = [one.at_s for one in self._promised.values() if one.at_s < self._now_s + kind.limit_s]
        self._too_much.add(kind.shape, max(outlasted, default=-math.inf), larger_too=tried is Tried.NO_ROOM)
        return False

    def _is_blocked(self, kind: JobClass, others: InTurn | None) -> None:
        partition = self._queue.shapes[kind.shape].partition
        if others is not None:
            self._push_next_of(others)
            if partition not in self._promised:
                self._promise(kind.shape)
            return
        behind = [shape for shape in self._queue.active if self._queue.shapes[shape].partition == partition]
        hopeful = [shape for shape in behind if self._starter.is_hopeful(shape)]
        if not hopeful and not self._turns:
            return  # nobody is left to be kept off
        # Who can be promised nothing leaves the promise to the next, whether or not that may have room.
        for shape in hopeful if self._promise(kind.shape) else behind:
            self._push_next_of(self._queue.in_turn(shape))

    def _promise(self, shape_index: int) -> bool:
        """Keep nodes for the first that is blocked; False where the time limits promise it none."""
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
            heapq.heappush(self._turns, (first, self._queue.kind_of(first[1]), None))

    def _push_next_of(self, others: InTurn | None) -> None:
        if others is None:
            return
        shortest_end_s = self._now_s + self._queue.shortest_s[others.shape]
        if self._has_promise(others.shape) and self._too_much.covers(others.shape, shortest_end_s):
            return
        following = others.next()
        if following is not None:
            heapq.heappush(self._turns, (*following, others))

    def _has_promise(self, shape: int) -> bool:
        """Whether somebody was promised nodes in its partition."""
        return self._queue.shapes[shape].partition in self._promised
