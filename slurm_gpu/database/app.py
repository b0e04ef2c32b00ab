"""Serve the HTTP interface that section 5 of docs/contracts.md defines; blocking work runs in threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import slurm_gpu
from slurm_gpu.database.api.controller import ControllerPages
from slurm_gpu.database.api.quota import QuotaPages
from slurm_gpu.database.api.reads import Reads
from slurm_gpu.database.api.running_use import RunningPage
from slurm_gpu.database.forecasts.api import ForecastApi
from slurm_gpu.database.http.error_responses import EXPECTED, answer_to
from slurm_gpu.database.http.rate_limits import BoundedCallers
from slurm_gpu.database.ingest.posts import Posts
from slurm_gpu.database.reservations.api import ReservationPages
from slurm_gpu.database.services import Services
from slurm_gpu.database.usage.api import UsagePage
from slurm_gpu.database.verdicts.api import VerdictsPage


def make_app(services: Services, posts: Posts) -> Starlette:
    """Return the ASGI application."""
    reads, words = Reads(services), ControllerPages(services)
    forecasts, reservations, quotas = ForecastApi(services), ReservationPages(services), QuotaPages(services)
    routes = [
        Route("/v1/node", posts.post_node, methods=["POST"]),
        Route("/v1/runs", reads.get_runs, methods=["GET"]),
        Route("/v1/runs/{job}", reads.get_job, methods=["GET"]),
        Route("/v1/runs/{job}/timeline", reads.get_timeline, methods=["GET"]),
        Route("/v1/runs/{job}/window", reads.get_window, methods=["GET"]),
        Route("/v1/runs/{job}/hosts", reads.get_hosts, methods=["GET"]),
        Route("/v1/live", reads.get_live, methods=["GET"]),
        Route("/v1/nodes", reads.get_nodes, methods=["GET"]),
        Route("/v1/running", RunningPage(services).get, methods=["GET"]),
        Route("/v1/verdicts", VerdictsPage(services.authenticator, services.verdicts).get, methods=["GET"]),
        Route("/v1/cluster", reads.get_cluster, methods=["GET"]),
        Route("/v1/usage", UsagePage(services).get, methods=["GET"]),
        Route("/v1/forecast", forecasts.get_forecast, methods=["GET"]),
        Route("/v1/forecast/{job}", forecasts.get_job_forecast, methods=["GET"]),
        Route("/v1/quota", quotas.wanted, methods=["GET"]),
        Route("/v1/quota/{user}", quotas.get, methods=["GET"]),
        Route("/v1/audit", words.get_audit, methods=["GET"]),
        Route("/v1/decisions", words.get_refusals, methods=["GET"]),
        Route("/v1/decisions/{token}", words.get_decisions, methods=["GET"]),
        Route("/v1/controller", words.post_controller, methods=["POST"]),
        Route("/v1/reservations", reservations.get, methods=["GET"]),
        Route("/v1/reservations", reservations.request, methods=["POST"]),
        Route("/v1/reservations/{id}", reservations.decide, methods=["POST"]),
        Route("/v1/health", reads.get_health, methods=["GET"]),
    ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = dict.fromkeys(EXPECTED, _answer)
    handlers[HTTPException] = _http_error
    bounds = Middleware(BoundedCallers, bounds=services.bounds)
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[bounds])


async def _answer(_: Request, error: Exception) -> Response:
    return answer_to(error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405 or "endpoint" not in request.scope:
        why = f"slurm-gpudbd {slurm_gpu.__version__} has no {request.method} {request.scope['path']}"
        return JSONResponse({"error": why}, error.status_code, headers=error.headers)
    return answer_to(error)
