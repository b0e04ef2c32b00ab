"""Log an outage once when it begins and once when it ends, no matter how often it is detected."""

from __future__ import annotations

import logging
import math
import threading

from slurm_gpu.clock import Clock
from slurm_gpu.errors import SlurmGpuError

AGAIN_S = 60.0


class OutageLog:
    """Logs the outages of one resource; methods are thread-safe.

    An outage that begins within AGAIN_S of the last logged failure is not logged. During an outage, the first
    error of each further type is also logged. If `over` is None, the end of an outage is not logged, and
    failures are logged at most once every AGAIN_S. An unexpected error is logged with its traceback the first
    time that an error of its type occurs.
    """

    def __init__(self, log: logging.Logger, what: str, clock: Clock, over: str | None = None) -> None:
        """Log an outage's start with `what`, whose %s is replaced by the reason, and its end with `over`."""
        self._log, self._what, self._over, self._clock = log, what, over, clock
        self._lock = threading.Lock()
        # Whether the last attempt failed, even if the failure was not logged.
        self.lasts = False
        self._n_unreported = 0
        self._next_s = -math.inf
        self._types: set[type] = set()
        self._traced: set[type] = set()

    def failed(self, error: BaseException | str) -> None:
        """Record a failure."""
        kind = type(error)
        unforeseen = isinstance(error, BaseException) and not isinstance(error, SlurmGpuError)
        with self._lock:
            self.lasts = True
            self._n_unreported += 1
            now_s = self._clock.monotonic()
            lasts = bool(self._types) and self._over is not None
            if kind in self._types if lasts else now_s < self._next_s:
                return
            n, self._n_unreported, self._next_s = self._n_unreported, 0, now_s + AGAIN_S
            self._types.add(kind)
            with_traceback = unforeseen and kind not in self._traced
            self._traced.add(kind)
        reason = f"{kind.__name__}: {error}" if unforeseen else str(error)
        if n > 1:
            reason += f" ({n} times since the last report)"
        self._log.warning(self._what, reason, exc_info=error if with_traceback else None)  # type: ignore[arg-type]

    def worked(self) -> None:
        """Record a success."""
        self.lasts = False
        if not self._types:  # the usual case
            return
        with self._lock:
            was_reported = bool(self._types)
            self._types.clear()
            self._traced.clear()
            if self._over is not None:
                self._n_unreported = 0
        if was_reported and self._over is not None:
            self._log.info(self._over)
