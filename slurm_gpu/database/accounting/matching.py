"""Match records to runs, as a pure function of one job's runs and records.

Every call covers all runs and records of the job, so the result does not depend on the order of arrival. A
wrong match that was made before the right run was imported is corrected by the next call.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from slurm_gpu.text.hostlist import expand

# MUNGE itself tolerates clock differences up to the lifetime of its credentials, 300 s.
ORDERED_SLACK_S = 300
UNORDERED_SLACK_S = 60
MISSING_SLACK_S = 60
_MAX_SHIFTS = 64
_MAX_NEAR = 64
# The maximum number of comparisons is sufficient for a job on 400 nodes with eight GPUs each. Records of much
# larger jobs are matched by the order of the runs.
_MAX_COMPARISONS = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpan:
    """The place and time of a run, as used for matching; `end_s` is None while the run continues."""

    run_id: int
    restart: int | None
    submit_s: int
    start_s: int | None
    end_s: int | None
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpan:
    """The place and time of a record, as used for matching."""

    segment: str
    device: str
    node: str
    restart: int
    first_s: int
    last_s: int


def node_set(expression: str) -> frozenset[str]:
    """Return the nodes of a hostlist, or an empty set if it is invalid.

    An invalid row thus affects only its own match.
    """
    try:
        return frozenset(expand(expression))
    except ValueError:
        return frozenset()


def assign(runs: Iterable[RunSpan], records: Iterable[RecordSpan]) -> dict[tuple[str, str], int | None]:
    """Return the run_id of each (segment, device) of one (cluster, job ID), or None if no run fits."""
    started = sorted(
        (run for run in runs if run.start_s is not None), key=lambda run: (run.start_s, run.submit_s)
    )
    found: dict[tuple[str, str], int | None] = {}
    for counted, some in _in_counts(started, records):
        find = _Finder(counted, _missing_before(counted, some), {record.node for record in some})
        found.update({(record.segment, record.device): find.run_id(record) for record in some})
    return found


# Runs and records of one sequence of restart counts.
_Count = tuple[Sequence[RunSpan], list[RecordSpan]]


def _in_counts(started: Sequence[RunSpan], records: Iterable[RecordSpan]) -> Sequence[_Count]:
    """Split runs and records into sequences of restarts.

    A record belongs to a sequence with a run on its node.
    """
    counts = list(_by_time(started, records))
    if len(counts) == 1:
        return counts
    on_node: dict[str, list[tuple[RunSpan, int]]] = defaultdict(list)
    for index, (runs, _) in enumerate(counts):
        for run in runs:
            for node in run.nodes:
                on_node[node].append((run, index))
    home: list[_Count] = [(runs, []) for runs, _ in counts]
    for index, (_, some) in enumerate(counts):
        for record in some:
            home[_count_of(record, index, on_node[record.node])][1].append(record)
    return home


def _count_of(record: RecordSpan, by_time: int, on_node: Sequence[tuple[RunSpan, int]]) -> int:
    """Return the index of the sequence to which a record belongs.

    `on_node` contains the runs on the record's node, each with the index of its sequence.
    """
    if any(index == by_time for _, index in on_node):
        return by_time
    overlap_s, index = max(
        ((_overlap_s(run, record), index) for run, index in on_node), default=(-math.inf, by_time)
    )
    return index if overlap_s >= -ORDERED_SLACK_S else by_time


def _by_time(started: Sequence[RunSpan], records: Iterable[RecordSpan]) -> Iterator[_Count]:
    """Split runs and records by time only.

    slurmctld ends a run before it starts the next run with the same ID. If a run has a successor but no end,
    Slurm lost the job and reused its ID. In this case, the run ended before its successor started, and
    restarts count from 0 again.
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
    """Finds the run of a record by node, restart and time, without comparing the record with all runs.

    If accounting has no restart count (Slurm 22.05), the position of a run in order of start, plus `missing`,
    is used instead. The order of start is wrong if a job ID was reused. If no run is found by order, the
    nearest run in time is used.
    """

    def __init__(self, started: Sequence[RunSpan], missing: int, nodes: Set[str]) -> None:
        """Index the runs, given in order of start; `nodes` contains all nodes that will be looked up."""
        self._started, self._missing = started, missing
        self._with_restart: dict[int, list[int]] = defaultdict(list)
        self._on_node: dict[str, _InTime] = {node: _InTime() for node in nodes}
        for index, run in enumerate(started):
            if run.restart is not None:
                self._with_restart[run.restart].append(index)
            for node in nodes & run.nodes:
                self._on_node[node].add(index, run)

    def run_id(self, record: RecordSpan) -> int | None:
        """Return the ID of the matching run, or None if no run fits."""
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
        """Return the indexes of runs with the same restart count as the record.

        The order of the runs is used for runs without a restart count from Slurm.
        """
        counted = self._with_restart.get(record.restart, [])
        index = record.restart - self._missing
        by_order = 0 <= index < len(self._started) and self._started[index].restart is None
        return [*counted, index] if by_order else counted

    def _may_be(self, index: int, run: RunSpan, record: RecordSpan) -> bool:
        if run.restart is not None:
            return run.restart == record.restart
        # A record of a later restart that does not overlap this run belongs to a run that is not imported
        # yet.
        later = record.restart > index + self._missing
        return record.restart >= self._missing and not (later and _overlap_s(run, record) <= 0)


class _InTime:
    """Runs on one node in order of start."""

    def __init__(self) -> None:
        self._indexes: list[int] = []
        self._starts: list[int] = []
        self._last_ends: list[float] = []

    def add(self, index: int, run: RunSpan) -> None:
        """Add the next run."""
        assert run.start_s is not None
        end_s = math.inf if run.end_s is None else run.end_s
        self._indexes.append(index)
        self._starts.append(run.start_s)
        self._last_ends.append(max(end_s, self._last_ends[-1] if self._last_ends else end_s))

    def near(self, record: RecordSpan) -> Iterator[int]:
        """Yield the indexes of runs within a minute of a record; if there are many, only the last ones."""
        stop = bisect_right(self._starts, record.last_s + UNORDERED_SLACK_S)
        for place in range(stop - 1, max(-1, stop - 1 - _MAX_NEAR), -1):
            if self._last_ends[place] < record.first_s - UNORDERED_SLACK_S:
                return
            yield self._indexes[place]


def _missing_before(started: Sequence[RunSpan], records: Sequence[RecordSpan]) -> int:
    """Return how many of a job's first runs are missing from accounting, according to the times of records.

    A record outside its run has two possible explanations: a clock is wrong, or a run is missing. The result
    is 0 if clock errors of at most MISSING_SLACK_S in total over all restarts explain the times, or if too
    many comparisons would be needed.
    """
    if all(run.restart is not None for run in started):
        return 0
    by_restart: dict[int, list[RecordSpan]] = {}
    for record in records:
        by_restart.setdefault(record.restart, []).append(record)

    def cost_s(missing: int) -> float:
        # Only the best-fitting record of each restart counts, since all records of a node have one clock.
        off = sum(
            min(_off_s(started, record, restart - missing) for record in some)
            for restart, some in by_restart.items()
        )
        return off + (MISSING_SLACK_S if missing else 0)

    if not cost_s(0):
        return 0
    if len(by_restart) * len(started) > _MAX_COMPARISONS:
        return 0
    possible = {restart - index for restart in by_restart for index in range(len(started)) if restart > index}
    n_shifts = min(_MAX_SHIFTS, _MAX_COMPARISONS // len(records))
    return min([0, *sorted(possible)[:n_shifts]], key=cost_s)


def _off_s(started: Sequence[RunSpan], record: RecordSpan, index: int) -> float:
    """Return the smallest clock error with which the record fits run `index`, which may be a missing run."""
    if index < 0:  # the run ended before the first run in accounting
        began = started[0].start_s
        assert began is not None
        off_s: float = record.last_s - began
    elif index < len(started):
        run = started[index]
        off_s = -_overlap_s(run, record) if record.node in run.nodes else ORDERED_SLACK_S
    else:  # the run began after the last run in accounting
        ended = started[-1].end_s
        off_s = ORDERED_SLACK_S if ended is None else ended - record.first_s
    return min(max(0.0, off_s), ORDERED_SLACK_S)


def _overlap_s(run: RunSpan, record: RecordSpan) -> float:
    """Return the overlap of run and record in seconds; a negative value is the gap between them."""
    assert run.start_s is not None
    end_s = record.last_s if run.end_s is None else run.end_s
    return min(end_s, record.last_s) - max(run.start_s, record.first_s)
