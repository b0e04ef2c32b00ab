"""Whether slurm-gpudbd still does its work: only while it does is systemd's watchdog fed.

It hangs where the loop that answers does not come round (then nothing here is called), where requests wait
and none is answered, where none of what is to be stored is, or where the import has ended or does not get on.
A database that is away is no such thing: its errors are answers.
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

MANY_SHIPMENTS = 200
"""A thousand nodes a second that are answered within a tenth of one are half as many at once."""
ANSWERED_WITHIN_S = 600.0
"""Well over what one request waits for a database that does not answer."""
IMPORT_STEP_WITHIN_S = 3600.0
"""A step of the import is one question to sacct, which may take ten minutes, or some hundred jobs or rows."""


class Answering:
    """An ASGI application around another, which sees whether requests are answered.

    Records and questions apart, since it may be writing alone that hangs, or reading alone.
    """

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._records = StallDetector("POST requests wait, and none was answered", clock)
        self._questions = StallDetector("GET requests wait, and none was answered", clock)

    @property
    def stall_detectors(self) -> tuple[StallDetector, ...]:
        """Requests that wait for the first word of their answer."""
        return self._records, self._questions

    @property
    def records(self) -> StallDetector:
        """Where POST requests wait."""
        return self._records

    def is_behind(self) -> bool:
        """Whether so many shipments wait that what nobody waits for should give way."""
        return self._records.n_waiting > MANY_SHIPMENTS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        stall_detector = self._records if scope["method"] == "POST" else self._questions
        stall_detector.begin()
        waits = True

        def answered() -> None:
            nonlocal waits
            if waits:
                waits = False
                stall_detector.end()

        async def told(message: Message) -> None:
            answered()
            await send(message)

        try:
            await self._app(scope, receive, told)
        finally:
            answered()


class PendingWork(Protocol):
    """Work that waits: a StallDetector, or several as one."""

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """In words, where some wait and none was done within that time."""


class Heartbeat:
    """Tells systemd how slurm-gpudbd fares; `beat` is called in the loop that answers."""

    def __init__(
        self,
        notifier: Notifier,
        clock: Clock,
        stall_detectors: tuple[PendingWork, ...],
        importing: Importer,
        import_runs: Callable[[], bool],
    ) -> None:
        """`lanes` are all in which somebody may wait for ever."""
        self._notifier, self._clock = notifier, clock
        self._stall_detectors, self._importing, self._import_runs = stall_detectors, importing, import_runs
        self._ready, self._hung = False, False

    def beat(self) -> float:
        """Feed the watchdog if all is well; returns the seconds until it is to be called again."""
        if not self._ready:
            self._ready = True
            self._notifier.ready()
        now_s = self._clock.monotonic()
        hung = self._hangs(now_s)
        if hung is None:
            if self._hung:
                self._hung = False
                log.warning("what hung goes on; systemd's watchdog is fed again")
            trouble = self._importing.status.error
            fares = "accounting is read" if trouble is None else f"accounting is not read: {trouble}"
            feed_at_s = self._notifier.turned(now_s, f"answers; {fares}")
            return max(0.0, min(feed_at_s - now_s, STATUS_EACH_S))
        if not self._hung:
            self._hung = True
            log.error("%s; systemd's watchdog is not fed any more", hung)
        return STATUS_EACH_S

    def _hangs(self, now_s: float) -> str | None:
        if not self._import_runs():
            return "the import has ended"
        silent_s = now_s - self._importing.stepped_s
        if silent_s > IMPORT_STEP_WITHIN_S + self._importing.interval_s:
            return f"the import has not got on for {silent_s:.0f} s"
        found = (stall_detector.hangs(now_s, ANSWERED_WITHIN_S) for stall_detector in self._stall_detectors)
        return next((hung for hung in found if hung is not None), None)
