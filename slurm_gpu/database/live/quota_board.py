"""Whose limits somebody wants to know, and what slurm-gpuctld last told of them: in memory alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slurm_gpu.clock import Clock
from slurm_gpu.wire.answers.quota import Quota

WANTED_FOR_S = 150.0
"""Who is not asked for again within this time is not wanted any more; pages ask each minute."""
KEPT_S = 60.0
"""Four times as long as slurm-gpuctld takes from one word to the next."""
MOST_WANTED = 500
"""At once; who comes beyond that waits until others have left."""


class QuotaBoard:
    """For several threads. What is told of somebody who is not wanted is left out."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._until: dict[str, float] = {}
        self._told: dict[str, tuple[float, Quota]] = {}
        self._heard = -KEPT_S
        """When slurm-gpuctld last asked who is wanted."""

    def ask(self, user: str) -> Quota:
        """What is known of a user's limits, who is wanted from now on."""
        with self._lock:
            now = self._drop_old()
            if user in self._until or len(self._until) < MOST_WANTED:
                self._until[user] = now + WANTED_FOR_S
            told = self._told.get(user)
            if told is not None:
                return told[1]
            return Quota(user=user, as_of_s=self._clock.wall(), limits=None, why=self._why(user, now))

    def wanted(self) -> list[str]:
        """Whose limits slurm-gpuctld, who asks this, is to tell."""
        with self._lock:
            self._heard = self._drop_old()
            return sorted(self._until)

    def tell(self, quotas: Iterable[Quota]) -> None:
        """slurm-gpuctld has told."""
        with self._lock:
            now = self._drop_old()
            for quota in quotas:
                if quota.user in self._until:
                    self._told[quota.user] = now + KEPT_S, quota

    def _why(self, user: str, now: float) -> str:
        if now - self._heard >= KEPT_S:
            return "slurm-gpuctld, which knows the policy and who uses what, is silent; does it run?"
        if user not in self._until:
            return f"{MOST_WANTED} users look at their limits just now; come again in some minutes"
        return "slurm-gpuctld is asked for them just now; come again in 15 s"

    def _drop_old(self) -> float:
        now = self._clock.monotonic()
        self._until = {user: until for user, until in self._until.items() if until > now}
        self._told = {user: item for user, item in self._told.items() if item[0] > now}
        return now
