"""Notify systemd's watchdog while slurm-gpudbd makes progress.

slurm-gpudbd hangs if its event loop is blocked; in that case, this code does not run either. It is also
considered hung if requests wait but none is answered, or if shipments wait but none is stored. The same
applies if the import has ended or makes no progress. An unreachable database is not a hang, since requests
are answered with errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.systemd import STATUS_EACH_S, Notifier
from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.ingest.stall_detector import StallDetector

log = logging.getLogger(__name__)

# At 1,000 shipments per second, each answered within 0.1 s, half this number of shipments wait at once.
MANY_SHIPMENTS = 200
# If no request is answered for this time, slurm-gpudbd is considered hung. A single request waits for much
# less time, even if the database does not answer.
ANSWERED_WITHIN_S = 600.0
# A step of the import is either one query of sacct, which may take ten minutes, or a few hundred jobs or
# rows.
IMPORT_STEP_WITHIN_S = 3600.0


class Answering:
    """ASGI middleware that detects unanswered requests.

    POST and GET requests are counted separately, since writing can hang while reading works, or vice versa.
    """

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._records = StallDetector("POST requests are waiting, and none has been answered", clock)
        self._questions = StallDetector("GET requests are waiting, and none has been answered", clock)

    @property
    def stall_detectors(self) -> tuple[StallDetector, ...]:
        """Return the detectors of stalled POST and GET requests.

        A request counts as waiting until its answer begins.
        """
        return self._records, self._questions

    @property
    def records(self) -> StallDetector:
        """Return the detector of stalled POST requests."""
        return self._records

    def is_behind(self) -> bool:
        """Return whether so many shipments wait that background work should pause."""
        return self._records.n_waiting > MANY_SHIPMENTS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        stall_detector = self._records if scope["method"] == "POST" else self._questions
        stall_detector.begin()
        waits = True

        def answered() -> None:
            nonlocal waits
            if waits:
                waits = False
                stall_detector.end()

        async def send_first(message: Message) -> None:
            answered()
            await send(message)

        try:
            await self._app(scope, receive, send_first)
        finally:
            answered()


class PendingWork(Protocol):
    """Work that may stall: one StallDetector, or several combined."""

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """Describe the hang if work waits and none was done for `within_s` seconds; otherwise return None."""


class Heartbeat:
    """Reports the state of slurm-gpudbd to systemd; call `beat` in the event loop."""

    def __init__(
        self,
        notifier: Notifier,
        clock: Clock,
        stall_detectors: tuple[PendingWork, ...],
        importing: Importer,
        import_runs: Callable[[], bool],
    ) -> None:
        self._notifier, self._clock = notifier, clock
        self._stall_detectors, self._importing, self._import_runs = stall_detectors, importing, import_runs
        self._ready, self._hung = False, False

    def beat(self) -> float:
        """Notify the watchdog unless there is a hang; return the seconds until the next call."""
        if not self._ready:
            self._ready = True
            self._notifier.ready()
        now_s = self._clock.monotonic()
        hung = self._hangs(now_s)
        if hung is None:
            if self._hung:
                self._hung = False
                log.warning("the hang has ended; systemd's watchdog is notified again")
            error = self._importing.status.error
            accounting = "accounting is read" if error is None else f"accounting cannot be read: {error}"
            feed_at_s = self._notifier.turned(now_s, f"answers; {accounting}")
            return max(0.0, min(feed_at_s - now_s, STATUS_EACH_S))
        if not self._hung:
            self._hung = True
            log.error("%s; systemd's watchdog is no longer notified", hung)
        return STATUS_EACH_S

    def _hangs(self, now_s: float) -> str | None:
        if not self._import_runs():
            return "the import has ended"
        silent_s = now_s - self._importing.stepped_s
        if silent_s > IMPORT_STEP_WITHIN_S + self._importing.interval_s:
            return f"the import has made no progress for {silent_s:.0f} s"
        found = (stall_detector.hangs(now_s, ANSWERED_WITHIN_S) for stall_detector in self._stall_detectors)
        return next((hung for hung in found if hung is not None), None)
