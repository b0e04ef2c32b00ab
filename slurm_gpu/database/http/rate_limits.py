"""Limit the requests of each user, to keep one user from slowing down the requests of others.

All functions of this module run in the event loop. Each uid has two limits: the number of requests served at
the same time, and a bucket of rows that refills at a fixed rate. The number of rows in an answer is known
only after the request is served, so a bucket may become negative; in that case, the next request waits
longer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.settings import PerUser
from slurm_gpu.http.identity import Caller

log = logging.getLogger(__name__)

# The limits of slurm-gpuweb are higher by this factor, since it reads for all users of its pages.
WEB_FACTOR = 8
# The capacity of a bucket is the number of rows that are refilled in this many seconds.
BURST_S = 5.0
# A request waits at most this long at each limit before it is rejected.
WAIT_S = 1.0
_SOON_S = 1
_SHARE = "share"


@dataclass(slots=True)
class _CallerUse:
    """The unused part of the limits of one uid."""

    served: asyncio.Semaphore
    rows: float
    """Number of rows that the uid may still read at `at_s`."""
    at_s: float


class CallerBounds:
    """Enforces the rate limits of each uid, except those of root and SlurmUser."""

    def __init__(self, per_user: PerUser, clock: Clock, wait_s: float = WAIT_S) -> None:
        self._per_user, self._clock, self._wait_s = per_user, clock, wait_s
        # A caller cannot choose its uid, so there is one entry per user. On hosts without slurm-gpuweb, the
        # uid of slurm-gpuweb may belong to an ordinary user, who must not use up its limits.
        self._uses: dict[tuple[int, bool], _CallerUse] = {}
        self._refused = OutageLog(log, "requests of a user are rejected for now: %s", clock)

    async def begin(self, caller: Caller) -> None:
        """Count a new request until `end` is called; raise HTTPException (429) if a limit is exceeded.

        A request that exceeds a limit first waits for a moment. A caller that reads page by page, or sends a
        few requests in parallel, is thus slowed down but not rejected. Clients that retry immediately are
        slowed down as well.
        """
        served, name = self._use_of(caller).served, caller.user or f"uid {caller.uid}"
        per_s = self._per_user.rows_per_s * _factor(caller)
        try:
            await asyncio.wait_for(served.acquire(), self._wait_s)
        except TimeoutError:
            n = self._per_user.requests * _factor(caller)
            self._refuse(f"{n} requests of {name} are being served", _SOON_S)
        try:
            if (due_s := self._due_s(caller, per_s)) > 0:
                await asyncio.sleep(min(due_s, self._wait_s))
                if (due_s := self._due_s(caller, per_s)) > 0:
                    self._refuse(f"{name} reads more than {per_s} rows a second", math.ceil(due_s))
        except BaseException:
            served.release()
            raise

    def end(self, caller: Caller) -> None:
        """End a request that `begin` counted."""
        self._uses[caller.uid, caller.is_web].served.release()

    def spend(self, caller: Caller, n_rows: int) -> None:
        """Subtract the rows of an answer from the caller's bucket."""
        self._use_of(caller).rows -= n_rows

    def _due_s(self, caller: Caller, per_s: int) -> float:
        """Return the seconds until the caller may read more rows; 0 or less means immediately."""
        return -self._use_of(caller).rows / per_s

    def _use_of(self, caller: Caller) -> _CallerUse:
        """Refill the caller's bucket, and return the unused part of the caller's limits."""
        now_s, factor = self._clock.monotonic(), _factor(caller)
        per_s = self._per_user.rows_per_s * factor
        use = self._uses.get((caller.uid, caller.is_web))
        if use is None:
            served = asyncio.Semaphore(self._per_user.requests * factor)
            use = self._uses[caller.uid, caller.is_web] = _CallerUse(served, BURST_S * per_s, now_s)
        use.rows = min(BURST_S * per_s, use.rows + (now_s - use.at_s) * per_s)
        use.at_s = now_s
        return use

    def _refuse(self, why: str, retry_after_s: int) -> NoReturn:
        self._refused.failed(why)
        raise HTTPException(
            429, f"{why}: try again in {retry_after_s} s", {"Retry-After": f"{retry_after_s}"}
        )


class BoundedCallers:
    """ASGI middleware that counts each request against the limits of its caller."""

    def __init__(self, app: ASGIApp, bounds: CallerBounds) -> None:
        self._app, self._bounds = app, bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and end its use of the limits afterwards."""
        share = Share(self._bounds)
        scope.setdefault("state", {})[_SHARE] = share
        try:
            await self._app(scope, receive, send)
        finally:
            share.end()


class Share:
    """One request's use of its caller's limits."""

    def __init__(self, bounds: CallerBounds) -> None:
        self._bounds = bounds
        self._caller: Caller | None = None

    async def begin(self, caller: Caller) -> None:
        """Count the request for `caller`; raise HTTPException (429) if a limit is exceeded."""
        if not caller.writes:
            await self._bounds.begin(caller)
            self._caller = caller

    def end(self) -> None:
        """Stop counting the request; further calls have no effect."""
        if self._caller is not None:
            self._bounds.end(self._caller)
            self._caller = None

    def spend(self, n_rows: int) -> None:
        """Subtract `n_rows` from the caller's bucket."""
        if self._caller is not None:
            self._bounds.spend(self._caller, n_rows)


def share_of(request: HTTPConnection) -> Share:
    """Return this request's use of the limits."""
    share: Share = request.scope["state"][_SHARE]
    return share


def _factor(caller: Caller) -> int:
    return WEB_FACTOR if caller.is_web else 1
