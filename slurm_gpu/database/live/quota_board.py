"""Keep in memory which users' limits are requested, and the limits that slurm-gpuctld sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slurm_gpu.clock import Clock
from slurm_gpu.wire.answers.quota import Quota

# Lifetime of a request for limits; open pages repeat their requests every minute.
WANTED_FOR_S = 150.0
# Limits are kept for four times the interval at which slurm-gpuctld sends them.
KEPT_S = 60.0
# Maximum number of users whose limits are requested; other users wait until requests expire.
MOST_WANTED = 500


class QuotaBoard:
    """Stores requests for limits and slurm-gpuctld's answers by user. Thread-safe.

    Answers that were not requested are ignored.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._until: dict[str, float] = {}
        self._quotas: dict[str, tuple[float, Quota]] = {}
        self._last_fetch = -KEPT_S
        """The time at which slurm-gpuctld last fetched the requests."""

    def ask(self, user: str) -> Quota:
        """Request the limits of a user, and return the last limits or the reason why they are missing."""
        with self._lock:
            now = self._drop_old()
            if user in self._until or len(self._until) < MOST_WANTED:
                self._until[user] = now + WANTED_FOR_S
            found = self._quotas.get(user)
            if found is not None:
                return found[1]
            return Quota(user=user, as_of_s=self._clock.wall(), limits=None, why=self._why(user, now))

    def wanted(self) -> list[str]:
        """Return the users whose limits slurm-gpuctld must send."""
        with self._lock:
            self._last_fetch = self._drop_old()
            return sorted(self._until)

    def put(self, quotas: Iterable[Quota]) -> None:
        """Store limits that slurm-gpuctld sent."""
        with self._lock:
            now = self._drop_old()
            for quota in quotas:
                if quota.user in self._until:
                    self._quotas[quota.user] = now + KEPT_S, quota

    def _why(self, user: str, now: float) -> str:
        if now - self._last_fetch >= KEPT_S:
            return "slurm-gpuctld, which evaluates the policy, is not reporting; check that it is running"
        if user not in self._until:
            return f"the limits of {MOST_WANTED} users are being read; try again in a few minutes"
        return "the limits are being requested from slurm-gpuctld; try again in 15 s"

    def _drop_old(self) -> float:
        now = self._clock.monotonic()
        self._until = {user: until for user, until in self._until.items() if until > now}
        self._quotas = {user: item for user, item in self._quotas.items() if item[0] > now}
        return now
