"""Poll Slurm's accounting for ended runs in the periods of limits on resource-hours.

slurmdbd may need minutes to return a month of runs on a large cluster, so queries run in the background. The
first queries return all runs since the start of the periods, and later ones return recently ended runs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import NamedTuple

from slurm_gpu.clock import SystemClock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.queue.amounts import CountingFacts, allocated_amounts, possible_types
from slurm_gpu.controller.queue.resource_hours import CountedRun, hourly_use
from slurm_gpu.controller.queue.usage import UsageOwner
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun, SlurmClient

log = logging.getLogger("slurm-gpuctld")

EVERY_S = 600.0
_RETRY_S = 60.0
# Overlap of queries, because slurmctld reports ended runs late after an outage of slurmdbd.
_OVERLAP_S = 3600
_AT_ONCE_S = 86400
# Maximum length of one query; the runs of a whole year may not fit in memory at once.
_MOST_AT_ONCE_S = 31 * _AT_ONCE_S


class _Span(NamedTuple):
    """A span of time, in epoch seconds."""

    begin_s: int
    end_s: int


class EndedRunsPoll:
    """Queries ended runs without blocking the watcher."""

    def __init__(self, client: SlurmClient, background: Background) -> None:
        self._client = client
        self._asking = BackgroundTask[list[CountedRun]](background)
        self._asked: _Span | None = None
        """The span of the query in progress."""
        self._known: _Span | None = None
        """The span whose runs have been received."""
        self._first_s = 0
        self._polled_s = self._next_s = 0.0
        self._outage = OutageLog(
            log, "used hours could not be updated: %s", SystemClock(), over="used hours are updated again"
        )

    @property
    def known_since_s(self) -> float:
        """The time since which all ended runs have been received; infinite before the first answer."""
        return math.inf if self._known is None else self._known.begin_s

    def poll(
        self, first_s: int, now_s: float, facts: CountingFacts, units: Collection[str]
    ) -> tuple[list[CountedRun], bool]:
        """Return the runs received since the last call, and whether they replace all earlier ones.

        `first_s` is the start of the longest period. The latest runs are queried first. After a change of
        `units`, call `restart`.
        """
        # Earlier answers may cover other periods if the clock was set far back. They lack days before the
        # previous periods, and runs that ended while nothing was polled.
        gap_s = now_s - self._polled_s if self._polled_s else 0.0
        if first_s < self._first_s or not -_OVERLAP_S <= gap_s <= EVERY_S:
            self.restart()
        self._first_s, self._polled_s = first_s, now_s
        if self._known is not None:
            self._known = self._known._replace(begin_s=max(self._known.begin_s, first_s))
        if self._asking.is_free and (span := self._next(first_s, int(now_s))) is not None:
            self._asked = span
            self._asking.start(lambda: self._read(span, int(now_s), facts, units))
        if not self._asking.is_done or self._asked is None:
            return [], False
        try:
            runs = self._asking.take()
        except SlurmError as error:
            self._next_s = now_s + _RETRY_S
            self._outage.failed(error)
            return [], False
        self._outage.worked()
        are_first, asked, self._asked = self._known is None, self._asked, None
        if self._known is None:
            self._known = asked
        else:
            begin_s, end_s = min(self._known.begin_s, asked.begin_s), max(self._known.end_s, asked.end_s)
            self._known = _Span(begin_s, end_s)
        if asked.end_s == self._known.end_s:
            self._next_s = now_s + EVERY_S
        return runs, are_first

    def restart(self) -> None:
        """Forget which runs have been received, so that all are queried again."""
        self._known, self._asked, self._next_s = None, None, 0.0
        self._asking.drop()

    def _next(self, first_s: int, now_s: int) -> _Span | None:
        """Return the next span to query; None if nothing is due."""
        if self._known is None:
            return _Span(max(first_s, now_s - _MOST_AT_ONCE_S), now_s) if now_s >= self._next_s else None
        if now_s >= self._next_s:
            return _Span(self._known.end_s - _OVERLAP_S, now_s)
        if first_s < self._known.begin_s:
            return _Span(max(first_s, self._known.begin_s - _MOST_AT_ONCE_S), self._known.begin_s)
        return None

    def _read(
        self, span: _Span, now_s: int, facts: CountingFacts, units: Collection[str]
    ) -> list[CountedRun]:
        """Return the runs that ended within the span, or up to an hour from now if the span ends now."""
        runs = []
        # A query of a month may take slurmdbd longer than the timeout.
        for begin_s in range(span.begin_s, span.end_s, _AT_ONCE_S):
            end_s = min(begin_s + _AT_ONCE_S, span.end_s)
            is_last = end_s == now_s
            for row in self._client.accounting(begin_s, None if is_last else end_s):
                run = _run(row, facts, units)
                # A run that lasts several days is in the answer for each of these days.
                most_s = end_s + _OVERLAP_S if is_last else end_s
                if run is not None and run.end_s is not None and begin_s <= run.end_s < most_s:
                    runs.append(run)
        return runs


def _run(row: AccountingRun, facts: CountingFacts, units: Collection[str]) -> CountedRun | None:
    if row.start_s is None or row.end_s is None or row.uid is None:
        return None
    owner = UsageOwner(row.uid, row.user, row.account, row.qos, row.partition)
    # After a resize, a row may have the start of the whole run; the row's own part starts at its submit time.
    begin_s = max(row.start_s, row.submit_s)
    amounts = allocated_amounts(row.tres_allocated, row.nodes, facts)
    hourly = hourly_use(amounts, possible_types(row.partition, facts), units)
    return CountedRun(row.job_id, owner, hourly, begin_s, row.end_s)
