"""Cache the accounts of users who request reservations, to limit the number of sacctmgr calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from slurm_gpu.clock import Clock
from slurm_gpu.slurm.submission import UserAssociations

KEPT_S = 30.0
AGAIN_AFTER_FAILURE_S = 10.0
# Operators may send requests for any user name, so the cache is limited.
_MAX_KEPT = 1000


class KeptPlaces:
    """Caches the associations of users, each for KEPT_S. Thread-safe."""

    def __init__(self, ask: Callable[[str], UserAssociations], clock: Clock) -> None:
        """Create an empty cache; `ask` runs sacctmgr.

        After a failure, `ask` is not called for any user for AGAIN_AFTER_FAILURE_S.
        """
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, UserAssociations]] = {}
        self._failed_until_s = -math.inf

    def of(self, user: str) -> UserAssociations:
        """Return the associations of a user, at most KEPT_S old."""
        with self._lock:
            now_s = self._clock.monotonic()
            until_s, places = self._kept.get(user, (-math.inf, UserAssociations(from_slurmdbd=False)))
            if now_s < until_s:
                return places
            if now_s < self._failed_until_s:
                return UserAssociations(from_slurmdbd=False)
            places = self._ask(user)
            if not places.from_slurmdbd:
                self._failed_until_s = self._clock.monotonic() + AGAIN_AFTER_FAILURE_S
                return places
            while len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept.pop(user, None)
            self._kept[user] = self._clock.monotonic() + KEPT_S, places
            return places
