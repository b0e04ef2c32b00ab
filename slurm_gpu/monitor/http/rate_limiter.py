"""Limit the number of concurrent requests that wait for slurm-gpudbd, in total and per user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException

T = TypeVar("T")

# The process has 40 worker threads, some of which are needed for signing in.
AT_ONCE = 24
# The page of a job sends four requests at once.
OF_A_USER = 8


class RequestSlots:
    """Slots for requests that wait for slurm-gpudbd."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """Return the result of `work`; raise HTTPException 503 if the user has too many requests."""
        if self._of[user] >= OF_A_USER:
            why = f"{OF_A_USER} requests of {user} are already waiting for slurm-gpudbd"
            raise HTTPException(503, why, {"Retry-After": "5"})
        # The limiter is created on first use, because it requires a running event loop.
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(AT_ONCE)
        self._of[user] += 1
        try:
            return await run_sync(work, limiter=self._limiter)
        finally:
            self._of[user] -= 1
            if not self._of[user]:
                del self._of[user]
