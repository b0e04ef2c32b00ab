"""How often the process that calls NVML ended by itself, and why it did."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from slurm_gpu.clock import Clock

log = logging.getLogger(__name__)

# So many within this time are no accident any more, and are reported once an hour.
MANY, WITHIN_S = 3, 60.0
AGAIN_S = 3600.0
# Those of so long are recent. A process that ends at once is started each minute (readerprocess).
RECENT_S = 600.0
_MAX_KEPT = 1000


class Dying(NamedTuple):
    """It ended `deaths` times within WITHIN_S, the last time for this reason."""

    deaths: int
    why: str


class Deaths:
    """Counts them; `total` is since slurm-gpud started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_s: deque[float] = deque(maxlen=_MAX_KEPT)
        self._reported_s: float | None = None
        self._dying: Dying | None = None
        self.total = 0

    def add(self, why: str) -> None:
        """It ended just now."""
        now_s = self._clock.monotonic()
        self.total += 1
        self._at_s.append(now_s)
        deaths = sum(now_s - at_s <= WITHIN_S for at_s in self._at_s)
        if deaths < MANY or (self._reported_s is not None and now_s - self._reported_s < AGAIN_S):
            return
        self._reported_s, self._dying = now_s, Dying(deaths, why)
        log.error("NVML: %d readers ended within %.0f s, the last one: %s", deaths, WITHIN_S, why)

    @property
    def recent(self) -> int:
        """How many there were in the last RECENT_S."""
        now_s = self._clock.monotonic()
        return sum(now_s - at_s <= RECENT_S for at_s in self._at_s)

    def take(self) -> Dying | None:
        """Return what is to be reported, once."""
        dying, self._dying = self._dying, None
        return dying
