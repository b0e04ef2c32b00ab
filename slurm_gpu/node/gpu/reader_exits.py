"""Count unexpected exits of the process that calls NVML, and report repeated ones."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from slurm_gpu.clock import Clock

log = logging.getLogger(__name__)

# An event reports at least this many exits within this time; there is at most one event per AGAIN_S.
MANY, WITHIN_S = 3, 60.0
AGAIN_S = 3600.0
# Exits within this time are recent. A process that always exits is restarted every minute
# (reader_process.py).
RECENT_S = 600.0
_MAX_KEPT = 1000


class RepeatedExits(NamedTuple):
    """The number of exits within WITHIN_S, and the reason for the last one."""

    exits: int
    why: str


class ReaderExits:
    """Counts exits; `total` is the number of exits since slurm-gpud started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_s: deque[float] = deque(maxlen=_MAX_KEPT)
        self._reported_s: float | None = None
        self._pending: RepeatedExits | None = None
        self.total = 0

    def add(self, why: str) -> None:
        """Count an exit that just happened."""
        now_s = self._clock.monotonic()
        self.total += 1
        self._at_s.append(now_s)
        exits = sum(now_s - at_s <= WITHIN_S for at_s in self._at_s)
        if exits < MANY or (self._reported_s is not None and now_s - self._reported_s < AGAIN_S):
            return
        self._reported_s, self._pending = now_s, RepeatedExits(exits, why)
        log.error("NVML: %d readers exited within %.0f s, the last one: %s", exits, WITHIN_S, why)

    @property
    def recent(self) -> int:
        """Return the number of exits in the last RECENT_S."""
        now_s = self._clock.monotonic()
        return sum(now_s - at_s <= RECENT_S for at_s in self._at_s)

    def take(self) -> RepeatedExits | None:
        """Return the repeated exits that have not been returned yet, if any."""
        dying, self._pending = self._pending, None
        return dying
