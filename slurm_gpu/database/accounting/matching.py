"""Which run a record belongs to: a function of one job's runs and records, and of nothing else.

It looks at the whole job each time, so the answer does not depend on the order in which runs and records
arrived, and a wrong first guess (the next run was not imported yet) is mended by the next look.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from slurm_gpu.text.hostlist import expand

# MUNGE itself lets clocks of nodes differ by its credential lifetime, 300 s.
ORDERED_SLACK_S = 300
UNORDERED_SLACK_S = 60
MISSING_SLACK_S = 60
_MAX_SHIFTS = 64
_MAX_NEAR = 64
# A job on 400 nodes of eight GPUs is looked at in full; of one with more records by far, order decides.
_MAX_LOOKS = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpan:
    """A run as matching sees it: where and when; `end_s` is None while it goes on."""

    run_id: int
    restart: int | None
    submit_s: int
    start_s: int | None
    end_s: int | None
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpan:
    """A record as matching sees it."""

    segment: str
    device: str
    node: str
    restart: int
    first_s: int
    last_s: int


def node_set(expression: str) -> frozenset[str]:
    """The nodes of a hostlist; none where it cannot be read, so that one bad row costs only its own match."""
    try:
        return frozenset(expand(expression))
    except ValueError:
        return frozenset()


def assign(runs: Iterable[RunSpan], records: Iterable[RecordSpan]) -> dict[tuple[str, str], int | None]:
    """(segment, device) → run_id, None where no run fits; all of one (cluster, job id)."""
    started = sorted(
        (run for run in runs if run.start_s is not None), key=lambda run: (run.start_s, run.submit_s)
    )
    found: dict[tuple[str, str], int | None] = {}
    for counted, told in _in_counts(started, records):
        find = _Finder(counted, _missing_before(counted, told), {record.node for record in told})
        found.update({(record.segment, record.device): find.run_id(record) for record in told})
    return found


_Count = tuple[Sequence[RunSpan], list[RecordSpan]]
"""Runs and records between which restarts are counted."""


def _in_counts(started: Sequence[RunSpan], records: Iterable[RecordSpan]) -> Sequence[_Count]:
    """All of them; a record that lies by its clock where nothing ran on its node goes where something did."""
    counts = list(_by_time(started, records))
    if len(counts) == 1:
        return counts
    on_node: dict[str, list[tuple[RunSpan, int]]] = defaultdict(list)
    for index, (runs, _) in enumerate(counts):
        for run in runs:
            for node in run.nodes:
                on_node[node].append((run, index))
    home: list[_Count] = [(runs, []) for runs, _ in counts]
    for index, (_, told) in enumerate(counts):
        for record in told:
            home[_count_of(record, index, on_node[record.node])][1].append(record)
    return home


def _count_of(record: RecordSpan, by_time: int, on_node: Sequence[tuple[RunSpan, int]]) -> int:
    """Which count it is of; `on_node` are the runs on its node, and theirs."""
    if any(index == by_time for _, index in on_node):
        return by_time
    overlap_s, index = max(
        ((_overlap_s(run, record), index) for run, index in on_node), default=(-math.inf, by_time)
    )
    return index if overlap_s >= -ORDERED_SLACK_S else by_time


def _by_time(started: Sequence[RunSpan], records: Iterable[RecordSpan]) -> Iterator[_Count]:
    """The same by the clock alone.

    slurmctld ends a run before it starts the next of that id. One that has no end and a next was forgotten
    with all else: the id came round again, restarts begin at 0, and it was over by then.
    """
    in_order = sorted(records, key=lambda record: record.first_s)
    first, n_before = 0, 0
    for index, (run, after) in enumerate(pairwise(started)):
        if run.end_s is not None:
            continue
        assert run.start_s is not None
        assert after.start_s is not None
        until_s = after.start_s - min(UNORDERED_SLACK_S, (after.start_s - run.start_s) / 2)
        n_until = bisect_left(in_order, until_s, key=lambda record: record.first_s)
        yield [*started[first:index], replace(run, end_s=after.start_s)], in_order[n_before:n_until]
        first, n_before = index + 1, n_until
    yield started[first:], in_order[n_before:]


class _Finder:
    """Finds the run with a record's node and restart, nearest in time, without looking at all of them.

    Where accounting has no restart count (Slurm 22.05), the order of start stands for it, after so many that
    are `missing`. That order is wrong where a job id came round again; hence time decides where order finds
    nothing.
    """

    def __init__(self, started: Sequence[RunSpan], missing: int, nodes: Set[str]) -> None:
        """`started` are in order of start; `nodes` are all that will be asked for."""
        self._started, self._missing = started, missing
        self._with_restart: dict[int, list[int]] = defaultdict(list)
        self._on_node: dict[str, _InTime] = {node: _InTime() for node in nodes}
        for index, run in enumerate(started):
            if run.restart is not None:
                self._with_restart[run.restart].append(index)
            for node in nodes & run.nodes:
                self._on_node[node].add(index, run)

    def run_id(self, record: RecordSpan) -> int | None:
        """The id of that run, None where none fits."""
        by_order = [
            (_overlap_s(run, record), index)
            for index in self._by_order(record)
            if record.node in (run := self._started[index]).nodes
        ]
        overlap_s, index = max(by_order, default=(-math.inf, 0))
        if overlap_s >= -ORDERED_SLACK_S:
            return self._started[index].run_id
        near = [
            (_overlap_s(run, record), index)
            for index in self._on_node[record.node].near(record)
            if self._may_be(index, run := self._started[index], record)
        ]
        overlap_s, index = max(near, default=(-math.inf, 0))
        return self._started[index].run_id if overlap_s >= -UNORDERED_SLACK_S else None

    def _by_order(self, record: RecordSpan) -> Sequence[int]:
        """Runs which by count or order are that restart's."""
        counted = self._with_restart.get(record.restart, [])
        index = record.restart - self._missing
        by_order = 0 <= index < len(self._started) and self._started[index].restart is None
        return [*counted, index] if by_order else counted

    def _may_be(self, index: int, run: RunSpan, record: RecordSpan) -> bool:
        if run.restart is not None:
            return run.restart == record.restart
        # What a later restart tells of the time after a run is of one that is not known yet.
        later = record.restart > index + self._missing
        return record.restart >= self._missing and not (later and _overlap_s(run, record) <= 0)


class _InTime:
    """Runs on one node in order of start."""

    def __init__(self) -> None:
        self._indexes: list[int] = []
        self._starts: list[int] = []
        self._last_ends: list[float] = []

    def add(self, index: int, run: RunSpan) -> None:
        """The next one."""
        assert run.start_s is not None
        end_s = math.inf if run.end_s is None else run.end_s
        self._indexes.append(index)
        self._starts.append(run.start_s)
        self._last_ends.append(max(end_s, self._last_ends[-1] if self._last_ends else end_s))

    def near(self, record: RecordSpan) -> Iterator[int]:
        """Those that were within a minute of a record; of many the last, as a true record is of one run."""
        stop = bisect_right(self._starts, record.last_s + UNORDERED_SLACK_S)
        for place in range(stop - 1, max(-1, stop - 1 - _MAX_NEAR), -1):
            if self._last_ends[place] < record.first_s - UNORDERED_SLACK_S:
                return
            yield self._indexes[place]


def _missing_before(started: Sequence[RunSpan], records: Sequence[RecordSpan]) -> int:
    """How many of a job's first runs accounting has not (any more, or yet); 0 unless time speaks for it.

    The order and a clock that is off, or one run less and clocks that are right: of a single record nobody
    can tell. Order is believed as long as the clocks need not be off by more than MISSING_SLACK_S for it,
    taken together over all restarts that were told of, and as long as there are not too many to look at.
    """
    if all(run.restart is not None for run in started):
        return 0
    told: dict[int, list[RecordSpan]] = {}
    for record in records:
        told.setdefault(record.restart, []).append(record)

    def cost_s(missing: int) -> float:
        # Of a restart the record that fits best counts: its devices and segments have one clock.
        off = sum(
            min(_off_s(started, record, restart - missing) for record in some)
            for restart, some in told.items()
        )
        return off + (MISSING_SLACK_S if missing else 0)

    if not cost_s(0):
        return 0
    if len(told) * len(started) > _MAX_LOOKS:
        return 0
    possible = {restart - index for restart in told for index in range(len(started)) if restart > index}
    n_shifts = min(_MAX_SHIFTS, _MAX_LOOKS // len(records))
    return min([0, *sorted(possible)[:n_shifts]], key=cost_s)


def _off_s(started: Sequence[RunSpan], record: RecordSpan, index: int) -> float:
    """By how much a clock must be off at least if this is a record of that run, which may not be known."""
    if index < 0:  # it was over before the first that is known
        began = started[0].start_s
        assert began is not None
        off_s: float = record.last_s - began
    elif index < len(started):
        run = started[index]
        off_s = -_overlap_s(run, record) if record.node in run.nodes else ORDERED_SLACK_S
    else:  # it began after the last that is known
        ended = started[-1].end_s
        off_s = ORDERED_SLACK_S if ended is None else ended - record.first_s
    return min(max(0.0, off_s), ORDERED_SLACK_S)


def _overlap_s(run: RunSpan, record: RecordSpan) -> float:
    """Seconds in common; negative: the seconds between them."""
    assert run.start_s is not None
    end_s = record.last_s if run.end_s is None else run.end_s
    return min(end_s, record.last_s) - max(run.start_s, record.first_s)
