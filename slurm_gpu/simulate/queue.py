"""Arrange waiting jobs so that a pass examines only a few of them, regardless of the queue's length.

Jobs with the same request for the same nodes form a *shape*: if one of them does not fit, none does. Jobs of
a shape with the same time limit form a *kind*: if a reservation blocks one of them, it blocks all. Jobs of a
kind that count against the same limits form a *line*, of which only the first job is examined. A line whose
limit is reached is *parked* until the limit has room again.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.jobs import Jobs, ResourceRequest
from slurm_gpu.simulate.lazy_heaps import Key, LazyHeaps
from slurm_gpu.simulate.limits import Amounts, amounts_of


@dataclass(frozen=True, slots=True)
class JobShape:
    """A request, its partition, and the QOS, which determines the jobs that it may preempt."""

    request: ResourceRequest
    partition: int
    qos: str


@dataclass(frozen=True, slots=True)
class JobClass:
    """The common properties of the jobs of one kind."""

    shape: int
    """Index into the queue's shapes."""
    limit_s: float


@dataclass(slots=True)
class _Line:
    kind: int
    counters: tuple[int, ...]
    amounts: Amounts
    heap: list[Key]
    parked_at: int | None = None
    """The counter for which the line waits; None if it is not parked."""
    parked_since_s: float = 0.0
    parked_s: float = 0.0
    """Total time for which the line was parked, excluding the current period."""


class ModelQueue:
    """The waiting jobs of a simulation, addressed by job index."""

    def __init__(self, jobs: Jobs, n_counters: int, n_partitions: int) -> None:
        self._waiting = bytearray(len(jobs))
        self.n_waiting = 0
        columns = _Columns.of(jobs)
        self.shapes, self.kinds, kind_of_job = _shapes_and_kinds(columns)
        self.shortest_s = [math.inf] * len(self.shapes)
        """The shortest time limit of the jobs of each shape."""
        for kind in self.kinds:
            self.shortest_s[kind.shape] = min(kind.limit_s, self.shortest_s[kind.shape])
        amounts = [amounts_of(self.shapes[kind.shape].request) for kind in self.kinds]
        found, line_of_job = _codes(np.stack((kind_of_job, columns.counters.astype(np.int64))))
        self._lines = [
            _Line(kind, jobs.counter_sets[counters], amounts[kind], []) for kind, counters in found.T.tolist()
        ]
        self._line_of_job = array("q", line_of_job[: len(jobs)].tobytes())
        released = line_of_job[len(jobs) :].tolist()
        self._line_once_released = dict(zip(columns.zoned.tolist(), released, strict=True))
        self._of_kinds = LazyHeaps(len(self.kinds), len(self._lines), self._head_of_line)
        self._of_shapes = LazyHeaps(len(self.shapes), len(self.kinds), self._of_kinds.first_key)
        self._of_partitions = LazyHeaps(n_partitions, len(self.shapes), self._of_shapes.first_key)
        self._parked: list[dict[Amounts, list[int]]] = [{} for _ in range(n_counters)]
        """The lines that are parked for each counter, by the amounts of their jobs."""
        self._parked_before = array("d", bytes(8 * len(jobs)))
        self.active: dict[int, None] = {}
        """Shapes that may have an unparked waiting job."""

    def shape_of(self, job: int) -> JobShape:
        """Return the shape of a job."""
        return self.shapes[self.kinds[self.kind_of(job)].shape]

    def kind_of(self, job: int) -> int:
        """Return the kind of a job."""
        return self._lines[self._line_of_job[job]].kind

    def counters_of(self, job: int) -> tuple[int, ...]:
        """Return the counters that count a job."""
        return self._lines[self._line_of_job[job]].counters

    def amounts_of(self, job: int) -> Amounts:
        """Return the amounts that a job adds to each of its counters."""
        return self._lines[self._line_of_job[job]].amounts

    def is_waiting(self, job: int) -> bool:
        """Return whether a job is waiting."""
        return bool(self._waiting[job])

    def add(self, job: int, key: Key, now_s: float) -> None:
        """Add a job to its line."""
        self._waiting[job] = 1
        self.n_waiting += 1
        index = self._line_of_job[job]
        line = self._lines[index]
        heapq.heappush(line.heap, key)
        self._parked_before[job] = _parked_s(line, now_s)
        if line.parked_at is None:
            self._post(index, key)

    def cancel(self, job: int) -> None:
        """Cancel a waiting job."""
        self._waiting[job] = 0
        self.n_waiting -= 1

    def release(self, job: int, now_s: float) -> None:
        """Drop the one-zone requirement of a waiting job, which then belongs to another kind."""
        index = self._line_once_released.pop(job, None)
        if index is None:
            return
        before, line = self._lines[self._line_of_job[job]], self._lines[index]
        key = next(key for key in before.heap if key[1] == job)
        self._parked_before[job] += _parked_s(line, now_s) - _parked_s(before, now_s)
        self._line_of_job[job] = index  # invalidates its key in the previous line
        heapq.heappush(line.heap, key)
        if line.parked_at is None:
            self._post(index, key)

    def take(self, job: int, now_s: float) -> float:
        """Remove the first job of a line to start it; return the seconds for which limits delayed it."""
        self._waiting[job] = 0
        self.n_waiting -= 1
        line = self._lines[self._line_of_job[job]]
        _, first = heapq.heappop(line.heap)
        assert first == job, "only the first job of a line can start"
        return _parked_s(line, now_s) - self._parked_before[job]

    def first_of_partition(self, partition: int) -> Key | None:
        """Return the partition's next job that is not parked."""
        return self._of_partitions.first_key(partition)

    def kinds_of(self, shape: int) -> KindIterator:
        """Iterate over the kinds of a shape, each with its first job."""
        return KindIterator(shape, self._of_shapes.entries(shape), self._of_kinds.first_key)

    def park(self, job: int, counter: int, now_s: float) -> None:
        """Park the line of this job until a counter has room."""
        index = self._line_of_job[job]
        line = self._lines[index]
        line.parked_at, line.parked_since_s = counter, now_s
        self._of_kinds.withdraw(index)
        self._parked[counter].setdefault(line.amounts, []).append(index)

    def unpark(self, counter: int, has_room: Callable[[Amounts], bool], now_s: float) -> None:
        """Unpark the lines that waited for this counter and now have enough room."""
        parked = self._parked[counter]
        for amounts in [amounts for amounts in parked if has_room(amounts)]:
            for index in parked.pop(amounts):
                line = self._lines[index]
                line.parked_at = None
                line.parked_s += now_s - line.parked_since_s
                head = self._head_of_line(index)
                if head is not None:
                    self._post(index, head)

    def _head_of_line(self, index: int) -> Key | None:
        heap = self._lines[index].heap
        while heap:
            job = heap[0][1]
            if self._waiting[job] and self._line_of_job[job] == index:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _post(self, line: int, key: Key) -> None:
        kind = self._lines[line].kind
        if not self._of_kinds.post(kind, line, key):
            return
        shape = self.kinds[kind].shape
        self.active[shape] = None
        if self._of_shapes.post(shape, kind, key):
            self._of_partitions.post(self.shapes[shape].partition, shape, key)


class KindIterator:
    """Iterates over the kinds of a shape in the order of their first jobs, without changing the queue.

    The caller calls `again` for a kind that may have another job: after a start, or after a line was parked.
    """

    def __init__(
        self, shape: int, entries: list[tuple[Key, int]], first_of_kind: Callable[[int], Key | None]
    ) -> None:
        self.shape = shape
        self._heap, self._first_of_kind = entries, first_of_kind
        self._last: tuple[Key, int] | None = None

    def next(self) -> tuple[Key, int] | None:
        """Return the key of the next first job and its kind; None if there is none."""
        heap = self._heap
        while heap:
            entry = heapq.heappop(heap)
            key, kind = entry
            first = self._first_of_kind(kind)
            if first == key:
                if entry != self._last:  # a kind may be in the heap twice
                    self._last = entry
                    return entry
            elif first is not None and first > key:
                heapq.heappush(heap, (first, kind))
        return None

    def again(self, kind: int) -> None:
        """Consider the last returned kind again, since it may have another job."""
        first = self._first_of_kind(kind)
        if first is not None:
            heapq.heappush(self._heap, (first, kind))


def _parked_s(line: _Line, now_s: float) -> float:
    return line.parked_s + (0.0 if line.parked_at is None else now_s - line.parked_since_s)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of all jobs, then those of all one-zone jobs again, without the one-zone requirement."""

    request: NDArray[np.int32]
    partition: NDArray[np.int32]
    qos: NDArray[np.int32]
    counters: NDArray[np.int32]
    limit_s: NDArray[np.float64]
    requests: Sequence[ResourceRequest]
    qos_names: Sequence[str]
    zoned: NDArray[np.intp]
    """The jobs that occur twice."""

    @classmethod
    def of(cls, jobs: Jobs) -> _Columns:
        codes = [code for code, request in enumerate(jobs.requests) if request.one_zone]
        zoned = np.flatnonzero(np.isin(jobs.request, codes)) if codes else np.zeros(0, dtype=np.intp)
        released = np.arange(len(jobs.requests), dtype=np.int32)
        requests = list(jobs.requests)
        for code in codes:
            released[code] = len(requests)
            requests.append(replace(jobs.requests[code], one_zone=False))
        return cls(
            request=np.concatenate((jobs.request, released[jobs.request[zoned]])),
            partition=np.concatenate((jobs.partition, jobs.partition[zoned])),
            qos=np.concatenate((jobs.qos, jobs.qos[zoned])),
            counters=np.concatenate((jobs.counters, jobs.counters[zoned])),
            limit_s=np.concatenate((jobs.limit_s, jobs.limit_s[zoned])),
            requests=requests,
            qos_names=jobs.qos_names,
            zoned=zoned,
        )


def _shapes_and_kinds(jobs: _Columns) -> tuple[list[JobShape], list[JobClass], NDArray[np.int64]]:
    """Return all shapes, all kinds, and the kind of each job."""
    columns = (jobs.request, jobs.partition, jobs.qos)
    shapes, shape_of_job = _codes(np.stack([np.asarray(column, dtype=np.int64) for column in columns]))
    limits, limit_of_job = np.unique(jobs.limit_s, return_inverse=True)
    kinds, kind_of_job = _codes(np.stack((shape_of_job, limit_of_job)))
    return (
        [JobShape(jobs.requests[r], p, jobs.qos_names[q]) for r, p, q in shapes.T.tolist()],
        [JobClass(shape, float(limits[limit])) for shape, limit in kinds.T.tolist()],
        kind_of_job,
    )


def _codes(columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct columns of a matrix, and the index of each column among them."""
    if columns.shape[1] == 0:
        return columns, np.zeros(0, dtype=np.int64)
    code = np.zeros(columns.shape[1], dtype=np.int64)
    for row in columns:  # combined pairwise, so that products of sizes cannot overflow
        _, code = np.unique(code * (int(row.max()) + 1) + row, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return columns[:, first], np.asarray(code, dtype=np.int64)
