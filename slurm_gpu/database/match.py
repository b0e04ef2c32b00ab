"""Which run a record belongs to: a function of one job's runs and records, and of nothing else.

It looks at the whole job each time, so the answer does not depend on the order in which runs and records
arrived, and a wrong first guess (the next run was not imported yet) is mended by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_gpu.slurm.hostlist import expand

# MUNGE itself lets clocks of nodes differ by its credential lifetime, 300 s.
ORDERED_SLACK_S = 300
UNORDERED_SLACK_S = 60
MISSING_SLACK_S = 60
_MAX_SHIFTS = 64


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
    records = list(records)
    missing = _missing_before(started, records)
    return {(record.segment, record.device): _find(started, record, missing) for record in records}


def _find(started: Sequence[RunSpan], record: RecordSpan, missing: int) -> int | None:
    """The run with the record's node and restart, nearest in time.

    Where accounting has no restart count (Slurm 22.05), the order of start stands for it, after so many that
    are `missing`. That order is wrong where a job id came round again; hence time decides where order finds
    nothing.
    """
    fits = [
        (index, run)
        for index, run in enumerate(started)
        if record.node in run.nodes
        and (record.restart >= missing if run.restart is None else run.restart == record.restart)
    ]
    for index, run in fits:
        known = run.restart is not None or index + missing == record.restart
        if known and _overlap_s(run, record) >= -ORDERED_SLACK_S:
            return run.run_id
    near = [
        (overlap_s, index, run)
        for index, run in fits
        # What a later restart tells of the time after a run is of one that is not known yet.
        if (overlap_s := _overlap_s(run, record)) > 0
        or run.restart is not None
        or index + missing >= record.restart
    ]
    best = max(near, key=lambda item: item[:2], default=None)
    return best[2].run_id if best is not None and best[0] >= -UNORDERED_SLACK_S else None


def _missing_before(started: Sequence[RunSpan], records: Sequence[RecordSpan]) -> int:
    """How many of a job's first runs accounting has not (any more, or yet); 0 unless time speaks for it.

    The order and a clock that is off, or one run less and clocks that are right: of a single record nobody
    can tell. Order is believed as long as the clocks need not be off by more than MISSING_SLACK_S for it,
    taken together over all restarts that were told of.
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
    possible = {restart - index for restart in told for index in range(len(started)) if restart > index}
    return min([0, *sorted(possible)[:_MAX_SHIFTS]], key=cost_s)


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
