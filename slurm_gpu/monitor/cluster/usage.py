"""Serve the cluster's usage over the last days, which the page draws above the squares."""

from __future__ import annotations

import threading
from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import Clock
from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.responses import dump
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.viewer import ViewerOf
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.usage import BINS_S, ClusterUsage

DAYS = tuple(map(str, BINS_S))
# slurm-gpudbd adds a sample every minute.
KEPT_S = 60.0


class UsageListing:
    """An ASGI application that serves GET /api/v1/usage; only operators see utilisation."""

    def __init__(
        self, connect: Callable[[], DatabaseClient], viewer_of: ViewerOf, clock: Clock, slots: RequestSlots
    ) -> None:
        self._connect, self._viewer_of, self._clock, self._slots = connect, viewer_of, clock, slots
        self._lock = threading.Lock()
        # By number of days and by whether the viewer sees everything: the answer, preceded by its expiry.
        self._kept: dict[tuple[str, bool], tuple[float, CachedResponse]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        viewer = self._viewer_of(request)
        days = request.query_params.get("days", DAYS[0])
        if days not in DAYS:
            raise UsageError(f"days: {days[:40]!r} must be one of {', '.join(DAYS)}")
        everything = viewer.visibility.everything
        answer = await self._slots.run(viewer.user, lambda: self._answer(days, everything))
        await answer(scope, receive, send)

    def _answer(self, days: str, everything: bool) -> CachedResponse:
        with self._lock:
            until, kept = self._kept.get((days, everything), (0.0, None))
            if kept is not None and self._clock.monotonic() < until:
                return kept
        with self._connect() as source:
            usage = source.usage(int(days))
        until, as_of_s = self._clock.monotonic() + KEPT_S, self._clock.wall()
        made = {
            True: _response(usage, as_of_s),
            False: _response(usage.without_utilisation(), as_of_s),
        }
        with self._lock:
            self._kept |= {(days, key): (until, response) for key, response in made.items()}
        return made[everything]


def _response(usage: ClusterUsage, as_of_s: float) -> CachedResponse:
    return CachedResponse(dump(to_json(usage)), JSON, [(b"x-as-of-s", f"{as_of_s:.3f}".encode())])
