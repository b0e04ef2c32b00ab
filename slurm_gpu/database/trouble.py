"""Tells of trouble that comes with every shipment of ten thousand nodes: once, and now and then."""

from __future__ import annotations

import logging
import math
import threading

from slurm_gpu.clock import Clock

log = logging.getLogger(__name__)

TOLD_EACH_S = 60.0


class TroubleLog:
    """A line in the log when it begins, one a minute while it lasts, and one when it is over.

    For several threads. What comes and goes all the time is told of once a minute, too.
    """

    def __init__(self, what: str, clock: Clock, over: str | None = None) -> None:
        """`what` has a %s for the reason, `over` tells of the end; None where there is no telling."""
        self._what, self._over, self._clock = what, over, clock
        self._lock = threading.Lock()
        self._n_untold = 0
        self._tell_at = -math.inf
        self._is_told = False

    def failed(self, why: str) -> None:
        """It is there."""
        with self._lock:
            self._n_untold += 1
            now = self._clock.monotonic()
            if now < self._tell_at:
                return
            n, self._n_untold, self._tell_at = self._n_untold, 0, now + TOLD_EACH_S
            self._is_told = True
        log.warning(self._what, why if n == 1 else f"{why} ({n} times since it was told last)")

    def worked(self) -> None:
        """It is not there, or not any more."""
        if not self._is_told:  # as nearly always
            return
        with self._lock:
            was_told, self._is_told = self._is_told, False
        if was_told and self._over is not None:
            log.warning(self._over)
