"""Serve the data of the signed-in user: their limits, and forecasts for their pending jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import Clock
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.responses import dump
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.job.forecasts import Forecasts
from slurm_gpu.monitor.viewer import ViewerOf
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.quota import Quota

# Maximum number of jobs per user with a forecast; the jobs that were submitted first are chosen.
MOST_FORECASTS = 20
LIMITS_KEPT_S = 10.0
_MOST_KEPT = 10_000


class Me:
    """An ASGI application that serves GET /api/v1/me."""

    def __init__(
        self,
        board: Board,
        connect: Callable[[], DatabaseClient],
        viewer_of: ViewerOf,
        clock: Clock,
        slots: RequestSlots,
    ) -> None:
        self._board, self._connect, self._viewer_of, self._clock = board, connect, viewer_of, clock
        self._slots = slots
        self._forecasts = Forecasts(connect, clock)
        self._lock = threading.Lock()
        self._limits: dict[str, tuple[float, Quota]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        viewer = self._viewer_of(HTTPConnection(scope))
        state = self._board.state
        jobs = () if state is None else state.seen.cluster.jobs
        waiting = sorted(
            (job for job in jobs if job.state == "PENDING" and viewer.own.owns(job.user, job.uid)),
            key=lambda job: (job.submit_s or 0, job.job_id),
        )[:MOST_FORECASTS]
        waits, quota = await self._slots.run(
            viewer.user, lambda: (self._waits(waiting), self._quota(viewer.user).seen_by(viewer.uid))
        )
        body = {
            "cluster": None if state is None else state.layout.cluster,
            "user": viewer.user,
            "operator": viewer.operator,
            "signed_in": "link" if viewer.by_link else "proxy",
            "limits": quota.limits,
            "limits_as_of_s": quota.as_of_s,
            "limits_why": quota.why,
            "waits": waits,
        }
        as_of_s = self._clock.wall() if state is None else state.as_of_s()
        answer = CachedResponse(dump(body), JSON, [(b"x-as-of-s", f"{as_of_s:.3f}".encode())])
        await answer(scope, receive, send)

    def _waits(self, jobs: list[ClusterJob]) -> list[dict[str, Any]]:
        found = self._forecasts.of(jobs)
        return [{"job_id": job.job_id, "id": job.id, **found[job.job_id]} for job in jobs]

    def _quota(self, user: str) -> Quota:
        """Return the user's limits, which are cached for a few seconds unless they are unknown."""
        with self._lock:
            until, kept = self._limits.get(user, (0.0, None))
        if kept is not None and self._clock.monotonic() < until:
            return kept
        try:
            with self._connect() as source:
                quota = source.quota(user)
        except (OutsideError, UsageError) as error:
            return Quota(user=user, as_of_s=self._clock.wall(), limits=None, why=str(error))
        if quota.limits is not None:
            with self._lock:
                if len(self._limits) >= _MOST_KEPT:
                    self._limits.clear()
                self._limits[user] = self._clock.monotonic() + LIMITS_KEPT_S, quota
        return quota
