"""Work that waits for slurm-gpudbd, in threads: as many at once as leave some for everybody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException

T = TypeVar("T")

AT_ONCE = 24
"""Of the 40 threads of a process: signing in needs some as well."""
OF_A_USER = 8
"""A page of a job asks for three things at once."""


class RequestSlots:
    """One for all that asks slurm-gpudbd while somebody waits."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """What `work` returns; 503 to a user of whom too much is under way."""
        if self._of[user] >= OF_A_USER:
            why = f"{OF_A_USER} requests of {user} wait for slurm-gpudbd already"
            raise HTTPException(503, why, {"Retry-After": "5"})
        if self._limiter is None:  # only where there is a loop
            self._limiter = anyio.CapacityLimiter(AT_ONCE)
        self._of[user] += 1
        try:
            return await run_sync(work, limiter=self._limiter)
        finally:
            self._of[user] -= 1
            if not self._of[user]:
                del self._of[user]
