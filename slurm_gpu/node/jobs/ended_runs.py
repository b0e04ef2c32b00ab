"""Runs whose end was seen of late, so that nobody who has yet to hear of it brings them back.

A slurmctld that was killed goes on from what it had saved, and may believe for long that a run goes on whose
epilog ran here. So these runs are kept in the spool: the next slurm-gpud is to know of them, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.shipping.spool import Spool

log = logging.getLogger(__name__)

# For so long slurmctld may believe that a run goes on whose epilog was seen. Nodes tell it which jobs they
# have when they register again, each 20 pings: at the default SlurmdTimeout of 300 s that is half an hour.
REMEMBERED_S = 3600.0
MOST = 10_000
# So long after an epilog slurmctld does not tell that its run goes on.
_EPILOG_UNCERTAIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndedRun:
    """`at_s` is Clock.monotonic(), `prolog_at_s` stands in its prolog's file; None if none was seen."""

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
    """The last run of each job that has ended in this boot; what was before it is over anyhow.

    An epilog alone does not tell which run ended: that of a requeued job carries the next one's restart
    count. So of an epilog without an allocation the same count may come again, in a younger answer.
    """

    def __init__(self, kept: Spool, clock: Clock) -> None:
        self._kept, self._clock = kept, clock
        # The oldest first.
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
        """That run, and those before it, have ended now; `certain` unless only an epilog says which it was.

        It is written down if it had GPUs, as far as the hook knew: of others Slurm's word begins nothing.
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
        """When that job's last run was seen to end; None if that was long ago, or never."""
        ended = self._ended.get(job_id)
        return None if ended is None else ended.at_s

    def covers(self, job_id: int, restart: int, as_of_s: float) -> bool:
        """Had that run ended, of which Slurm tells as of then?"""
        ended = self._ended.get(job_id)
        if ended is None or restart > ended.restart:
            return False
        return ended.certain or restart < ended.restart or as_of_s < ended.at_s + _EPILOG_UNCERTAIN_S

    def began_at(self, job_id: int, prolog_at_s: float) -> bool:
        """Is it the prolog of the run that ended, whose file was left by a slurm-gpud that was killed?"""
        ended = self._ended.get(job_id)
        return ended is not None and ended.prolog_at_s == prolog_at_s

    def _of_this_boot(self) -> Iterator[tuple[int, _EndedRun]]:
        """Those that are kept; what is of another boot, or cannot be read, is not kept any longer."""
        for job_id, value in self._kept.ended_runs().items():
            try:
                boot_id, ended = value["boot_id"], _EndedRun.from_json(value)
            except (KeyError, TypeError, ValueError) as error:
                log.error("when job %d ended cannot be read: %r in %s", job_id, error, value)  # noqa: TRY400
                boot_id = None
            if boot_id == self._clock.boot_id():
                yield job_id, ended
            else:
                self._kept.drop_ended_run(job_id)
