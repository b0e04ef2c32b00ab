"""Remember recently ended runs, so that outdated reports do not reopen their allocations.

If slurmctld is killed and restarted, it may report a run as running long after the run's epilog ran here. The
ended runs are stored in the spool, so that they survive a restart of slurm-gpud.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.shipping.spool import Spool

log = logging.getLogger(__name__)

# slurmctld may report an ended run as running for this long. Nodes report their jobs when they register
# again, every 20 pings: half an hour at the default SlurmdTimeout of 300 s.
REMEMBERED_S = 3600.0
MOST = 10_000
# Unless it restarts, slurmctld reports a run as running for at most this long after the epilog.
_EPILOG_UNCERTAIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndedRun:
    """A run that ended at `at_s` (Clock.monotonic()); `prolog_at_s` is the time in its prolog's file."""

    restart: int
    at_s: float
    certain: bool
    prolog_at_s: float | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> _EndedRun:
        prolog_at_s = value["prolog_at_s"]
        return cls(
            restart=int(value["restart"]),
            at_s=float(value["at_s"]),
            certain=bool(value["certain"]),
            prolog_at_s=None if prolog_at_s is None else float(prolog_at_s),
        )


class EndedRuns:
    """The last ended run of each job in this boot; all earlier runs of the job have ended, too.

    An epilog does not identify its run, because the epilog of a requeued job contains the restart count of
    the next run. If an epilog belongs to no allocation, a report on the next run may therefore contain the
    same restart count as the epilog.
    """

    def __init__(self, kept: Spool, clock: Clock) -> None:
        self._kept, self._clock = kept, clock
        # Sorted by time, the oldest first.
        self._ended = dict(sorted(self._of_this_boot(), key=lambda item: item[1].at_s))

    def add(
        self,
        job_id: int,
        restart: int,
        *,
        certain: bool = True,
        had_gpus: bool = True,
        prolog_at_s: float | None = None,
    ) -> None:
        """Record that a run of the job and all its earlier runs have ended.

        `certain` is false if only an epilog identifies the run. The run is saved if it may have had GPUs.
        Slurm's reports on runs without GPUs do not start an allocation.
        """
        now_s = self._clock.monotonic()
        before = self._ended.pop(job_id, None)
        if before is not None and before.certain and before.restart >= restart:
            certain, restart = True, before.restart
        if before is not None and prolog_at_s is None:
            prolog_at_s = before.prolog_at_s
        ended = _EndedRun(restart=restart, at_s=now_s, certain=certain, prolog_at_s=prolog_at_s)
        self._ended[job_id] = ended
        if certain or had_gpus:
            self._kept.save_ended_run(job_id, {**asdict(ended), "boot_id": self._clock.boot_id()})
        oldest, run = next(iter(self._ended.items()))
        while len(self._ended) > MOST or now_s - run.at_s > REMEMBERED_S:
            del self._ended[oldest]
            self._kept.drop_ended_run(oldest)
            oldest, run = next(iter(self._ended.items()))

    def ended_s(self, job_id: int) -> float | None:
        """Return when the job's last run ended, or None if it did not end recently."""
        ended = self._ended.get(job_id)
        return None if ended is None else ended.at_s

    def covers(self, job_id: int, restart: int, as_of_s: float) -> bool:
        """Return whether a run had already ended at `as_of_s`, the time of Slurm's report on it."""
        ended = self._ended.get(job_id)
        if ended is None or restart > ended.restart:
            return False
        return ended.certain or restart < ended.restart or as_of_s < ended.at_s + _EPILOG_UNCERTAIN_S

    def began_at(self, job_id: int, prolog_at_s: float) -> bool:
        """Return whether the prolog belongs to the ended run; a killed slurm-gpud may have left the file."""
        ended = self._ended.get(job_id)
        return ended is not None and ended.prolog_at_s == prolog_at_s

    def _of_this_boot(self) -> Iterator[tuple[int, _EndedRun]]:
        """Yield the saved runs of this boot; delete runs of other boots and those that cannot be read."""
        for job_id, value in self._kept.ended_runs().items():
            try:
                boot_id, ended = value["boot_id"], _EndedRun.from_json(value)
            except (KeyError, TypeError, ValueError) as error:
                log.error("the end of job %d in the spool cannot be read: %r in %s", job_id, error, value)  # noqa: TRY400
                self._kept.drop_ended_run(job_id)
                continue
            if boot_id == self._clock.boot_id():
                yield job_id, ended
            else:
                self._kept.drop_ended_run(job_id)
