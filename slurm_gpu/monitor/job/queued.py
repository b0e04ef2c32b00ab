"""Serve a job as slurmctld last reported it; if it is pending, add the reason and the expected start."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.pending import Wait, find_job, wait_of
from slurm_gpu.monitor.cluster.responses import dump
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.job.forecasts import ForecastAnswer, Forecasts
from slurm_gpu.monitor.job.pages import read_job
from slurm_gpu.monitor.viewer import ViewerOf
from slurm_gpu.wire.answers.cluster import ClusterJob


class QueuedJobPage:
    """An ASGI application that serves GET /api/v1/jobs/{job}/queued.

    Only viewers with full access to the job receive its name, dependencies and forecast.
    """

    def __init__(self, board: Board, forecasts: Forecasts, viewer_of: ViewerOf, slots: RequestSlots) -> None:
        self._board, self._forecasts, self._viewer_of, self._slots = board, forecasts, viewer_of, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        viewer = self._viewer_of(request)
        job_id = read_job(request.path_params["job"])
        cluster = self._board.current().seen.cluster
        shown = None
        if (job := find_job(cluster, job_id)) is not None:
            full = viewer.visibility.may_see(job.user, job.uid)
            shown = _job(job, full=full)
            if (wait := wait_of(cluster, job)) is not None:
                forecast = None
                if full:
                    found = await self._slots.run(viewer.user, lambda: self._forecasts.of([job]))
                    forecast = found[job.job_id]
                shown["wait"] = _wait(wait, job, full=full, forecast=forecast)
        headers = [(b"x-as-of-s", f"{cluster.as_of_s:.3f}".encode())]
        await CachedResponse(dump({"job": shown}), JSON, headers)(scope, receive, send)


def _job(job: ClusterJob, *, full: bool) -> dict[str, Any]:
    return {
        "id": job.id,
        "job_id": job.job_id,
        "full": full,
        "name": job.name if full else None,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "state": job.state,
        "n_tasks": job.n_tasks,
        "n_nodes": job.n_nodes,
        "n_gpus": job.n_gpus,
        "submit_s": job.submit_s,
        "start_s": job.start_s,
        "end_s": job.end_s,
        "time_limit_s": job.time_limit_s,
        "wait": None,
    }


def _wait(wait: Wait, job: ClusterJob, *, full: bool, forecast: ForecastAnswer | None) -> dict[str, Any]:
    return {
        "reason": wait.reason,
        "meaning": wait.meaning,
        "dependency": (job.dependency or None) if full else None,
        "place": wait.place,
        "n_jobs": wait.n_jobs,
        "gpus_ahead": wait.gpus_ahead,
        "start_s": wait.start_s,
        "forecast": forecast,
    }
