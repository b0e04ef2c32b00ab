"""Jobs that wait, so arranged that a pass looks at few of them however many there are.

Jobs that ask the same of the same nodes for the same time are of one *kind*: if one of them cannot start for
lack of room, none of them can. Those of a kind that count against the same limits stand in one *line*, the
first of which is the only one to look at. A line whose limit is reached is *parked* until it has room again.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.jobs import Jobs, Request
from slurm_gpu.simulate.limits import Amounts, amounts_of

Key = tuple[float, int]
"""(-priority, job): the smallest is next."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What jobs of one kind have in common."""

    request: Request
    partition: int
    limit_s: float
    qos: str


@dataclass(slots=True)
class _Line:
    kind: int
    counters: tuple[int, ...]
    heap: list[Key]
    parked_at: int | None = None
    """The counter that it waits for."""
    parked_since_s: float = 0.0
    parked_s: float = 0.0
    """In all, up to the last time that it was let go."""


class Queue:
    """The waiting jobs of one model. What it is asked about a job is by the job's index."""

    def __init__(self, jobs: Jobs, n_counters: int, n_partitions: int) -> None:
        self._waiting = bytearray(len(jobs))
        self.n_waiting = 0
        self.kinds, kind_of_job = _kinds_of(jobs)
        pairs = np.stack((kind_of_job, jobs.counters.astype(np.int64)))
        found, line_of_job = _codes(pairs)
        self._lines = [_Line(int(kind), jobs.counter_sets[int(counters)], []) for kind, counters in found.T]
        self._line_of_job = array("q", line_of_job.tobytes())
        self._amounts = [amounts_of(kind.request) for kind in self.kinds]
        self._kind_heaps: list[list[tuple[Key, int]]] = [[] for _ in self.kinds]
        self._partition_heaps: list[list[tuple[Key, int]]] = [[] for _ in range(n_partitions)]
        # Where a heap has several entries of a line (or kind), the one posted last is valid.
        self._posted_line: list[Key | None] = [None] * len(self._lines)
        self._posted_kind: list[Key | None] = [None] * len(self.kinds)
        self._parked: list[dict[int, None]] = [{} for _ in range(n_counters)]
        self._held_before = array("d", bytes(8 * len(jobs)))
        self.active: dict[int, None] = {}
        """Kinds of which some job may be waiting, unparked."""

    def kind_of(self, job: int) -> int:
        """Its kind."""
        return self._lines[self._line_of_job[job]].kind

    def counters_of(self, job: int) -> tuple[int, ...]:
        """Those that it counts in."""
        return self._lines[self._line_of_job[job]].counters

    def amounts(self, kind: int) -> Amounts:
        """What one job of a kind counts as."""
        return self._amounts[kind]

    def is_waiting(self, job: int) -> bool:
        """Whether it stands in a line."""
        return bool(self._waiting[job])

    def add(self, job: int, key: Key, now_s: float) -> None:
        """A job begins to wait."""
        self._waiting[job] = 1
        self.n_waiting += 1
        index = self._line_of_job[job]
        line = self._lines[index]
        heapq.heappush(line.heap, key)
        self._held_before[job] = _parked_s(line, now_s)
        if line.parked_at is None:
            posted = self._posted_line[index]
            if posted is None or key < posted:
                self._post_line(index, key)

    def give_up(self, job: int) -> None:
        """A waiting job is cancelled."""
        self._waiting[job] = 0
        self.n_waiting -= 1

    def take(self, job: int, now_s: float) -> float:
        """The first of its line starts; returns how long limits held it, in seconds."""
        self._waiting[job] = 0
        self.n_waiting -= 1
        line = self._lines[self._line_of_job[job]]
        _, first = heapq.heappop(line.heap)
        assert first == job, "only the first of a line starts"
        return _parked_s(line, now_s) - self._held_before[job]

    def head_of_kind(self, kind: int) -> Key | None:
        """The next job of a kind that no limit is known to hinder."""
        heap = self._kind_heaps[kind]
        while heap:
            key, index = heap[0]
            if self._posted_line[index] == key:
                head = self._head_of_line(index)
                if head == key:
                    return key
                self._posted_line[index] = head
                if head is not None:
                    heapq.heapreplace(heap, (head, index))
                    continue
            heapq.heappop(heap)
        return None

    def head_of_partition(self, partition: int) -> Key | None:
        """Likewise, of a partition."""
        heap = self._partition_heaps[partition]
        while heap:
            key, kind = heap[0]
            if self._posted_kind[kind] == key:
                head = self.head_of_kind(kind)
                if head == key:
                    return key
                self._posted_kind[kind] = head
                if head is not None:
                    heapq.heapreplace(heap, (head, kind))
                    continue
                self.active.pop(kind, None)
            heapq.heappop(heap)
        return None

    def heads(self) -> list[tuple[Key, int]]:
        """The first of each kind, with the kind, in the order of priority."""
        found = []
        for kind in list(self.active):
            head = self.head_of_kind(kind)
            if head is None:
                self._posted_kind[kind] = None
                del self.active[kind]
            else:
                found.append((head, kind))
        found.sort()
        return found

    def park(self, job: int, counter: int, now_s: float) -> None:
        """The line of this job waits for room in a counter."""
        index = self._line_of_job[job]
        line = self._lines[index]
        line.parked_at, line.parked_since_s = counter, now_s
        self._posted_line[index] = None
        self._parked[counter][index] = None

    def parked_at(self, counter: int) -> Iterator[tuple[int, Amounts]]:
        """Lines that wait for room in a counter, and what the first job of each counts as."""
        for index in list(self._parked[counter]):
            yield index, self._amounts[self._lines[index].kind]

    def let_go(self, index: int, now_s: float) -> None:
        """A line has room again, as far as the counter goes for which it waited."""
        line = self._lines[index]
        assert line.parked_at is not None, "the line is parked"
        del self._parked[line.parked_at][index]
        line.parked_at = None
        line.parked_s += now_s - line.parked_since_s
        head = self._head_of_line(index)
        if head is not None:
            self._post_line(index, head)

    def waiting(self) -> NDArray[np.intp]:
        """All waiting jobs, ascending."""
        return np.flatnonzero(np.frombuffer(self._waiting, dtype=np.uint8))

    def rerank(self, keys: Iterable[Key]) -> None:
        """Give every waiting job a new key; all of them have to be named."""
        for heap in (*self._kind_heaps, *self._partition_heaps):
            heap.clear()
        for line in self._lines:
            line.heap.clear()
        self._posted_line = [None] * len(self._lines)
        self._posted_kind = [None] * len(self.kinds)
        self.active.clear()
        for key in keys:
            self._lines[self._line_of_job[key[1]]].heap.append(key)
        for index, line in enumerate(self._lines):
            if line.heap:
                heapq.heapify(line.heap)
                if line.parked_at is None:
                    self._post_line(index, line.heap[0])

    def _head_of_line(self, index: int) -> Key | None:
        heap = self._lines[index].heap
        while heap:
            if self._waiting[heap[0][1]]:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _post_line(self, index: int, key: Key) -> None:
        self._posted_line[index] = key
        kind = self._lines[index].kind
        heapq.heappush(self._kind_heaps[kind], (key, index))
        posted = self._posted_kind[kind]
        if posted is None or key < posted:
            self._posted_kind[kind] = key
            heapq.heappush(self._partition_heaps[self.kinds[kind].partition], (key, kind))
            self.active[kind] = None


def _parked_s(line: _Line, now_s: float) -> float:
    return line.parked_s + (0.0 if line.parked_at is None else now_s - line.parked_since_s)


def _kinds_of(jobs: Jobs) -> tuple[list[Kind], NDArray[np.int64]]:
    limits, limit_codes = np.unique(jobs.limit_s, return_inverse=True)
    columns = (jobs.request, jobs.partition, limit_codes, jobs.qos)
    found, codes = _codes(np.stack([np.asarray(column, dtype=np.int64) for column in columns]))
    kinds = [
        Kind(jobs.requests[int(r)], int(p), float(limits[int(t)]), jobs.qos_names[int(q)])
        for r, p, t, q in found.T
    ]
    return kinds, codes


def _codes(columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct columns of a matrix, and for each column which it is."""
    if columns.shape[1] == 0:
        return columns, np.zeros(0, dtype=np.int64)
    code = np.zeros(columns.shape[1], dtype=np.int64)
    for row in columns:  # combined pairwise, so that no product of sizes can overflow
        _, code = np.unique(code * (int(row.max()) + 1) + row, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return columns[:, first], np.asarray(code, dtype=np.int64)
