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
    return {(record.segment, record.device): _find(started, record) for record in records}


def _find(started: Sequence[RunSpan], record: RecordSpan) -> int | None:
    """The run with the record's node and restart, nearest in time.

    Where accounting has no restart count (Slurm 22.05), the order of start stands for it. That order is wrong
    where old runs are missing or a job id came round again; hence time decides where order finds nothing.
    """
    fits = [
        (index, run)
        for index, run in enumerate(started)
        if record.node in run.nodes and (run.restart is None or run.restart == record.restart)
    ]
    for index, run in fits:
        known = run.restart is not None or index == record.restart
        if known and _overlap_s(run, record) >= -ORDERED_SLACK_S:
            return run.run_id
    near = [(_overlap_s(run, record), index, run) for index, run in fits]
    best = max(near, key=lambda item: item[:2], default=None)
    return best[2].run_id if best is not None and best[0] >= -UNORDERED_SLACK_S else None


def _overlap_s(run: RunSpan, record: RecordSpan) -> float:
    """Seconds in common; negative: the seconds between them."""
    assert run.start_s is not None
    end_s = record.last_s if run.end_s is None else run.end_s
    return min(end_s, record.last_s) - max(run.start_s, record.first_s)
