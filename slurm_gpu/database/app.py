"""The HTTP interface of docs/contracts.md, section 5. Work that waits runs in threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import slurm_gpu
from slurm_gpu.database.asking import RETRY_AFTER_S
from slurm_gpu.database.controllerapi import ControllerWords
from slurm_gpu.database.forecasts.api import Forecasts
from slurm_gpu.database.identity import NotAuthenticatedError
from slurm_gpu.database.posts import Posts
from slurm_gpu.database.reads import Reads
from slurm_gpu.database.reserve.api import ReservationPages
from slurm_gpu.database.services import Services
from slurm_gpu.database.shipment import ShipmentError
from slurm_gpu.errors import DatabaseError, MungedAwayError, OutsideError, SlurmError, UsageError
from slurm_gpu.records import WIRE_RANGE


def make_app(services: Services) -> Starlette:
    """The ASGI application."""
    posts, reads, words = Posts(services), Reads(services), ControllerWords(services)
    forecasts, reservations = Forecasts(services), ReservationPages(services)
    routes = [
        Route("/v1/node", posts.post_node, methods=["POST"]),
        Route("/v1/runs", reads.get_runs, methods=["GET"]),
        Route("/v1/runs/{job}", reads.get_job, methods=["GET"]),
        Route("/v1/runs/{job}/timeline", reads.get_timeline, methods=["GET"]),
        Route("/v1/runs/{job}/window", reads.get_window, methods=["GET"]),
        Route("/v1/live", reads.get_live, methods=["GET"]),
        Route("/v1/nodes", reads.get_nodes, methods=["GET"]),
        Route("/v1/cluster", reads.get_cluster, methods=["GET"]),
        Route("/v1/forecast", forecasts.get_forecast, methods=["GET"]),
        Route("/v1/forecast/{job}", forecasts.get_job_forecast, methods=["GET"]),
        Route("/v1/audit", words.get_audit, methods=["GET"]),
        Route("/v1/decisions", words.get_refusals, methods=["GET"]),
        Route("/v1/decisions/{token}", words.get_decisions, methods=["GET"]),
        Route("/v1/controller", words.post_controller, methods=["POST"]),
        Route("/v1/reservations", reservations.get, methods=["GET"]),
        Route("/v1/reservations", reservations.request, methods=["POST"]),
        Route("/v1/reservations/{id:int}", reservations.decide, methods=["POST"]),
        Route("/v1/health", reads.get_health, methods=["GET"]),
    ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        NotAuthenticatedError: _not_authenticated,
        ShipmentError: _bad_shipment,
        UsageError: _bad_usage,
        DatabaseError: _try_later,
        MungedAwayError: _try_later,
        SlurmError: _try_later,
        HTTPException: _http_error,
        ClientDisconnect: _gone,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def _not_authenticated(_: Request, error: NotAuthenticatedError) -> Response:
    return JSONResponse({"error": str(error)}, 401, headers={"WWW-Authenticate": "MUNGE"})


async def _bad_shipment(_: Request, error: ShipmentError) -> Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return JSONResponse({"error": str(error), "wire": list(WIRE_RANGE)}, error.status, headers)


async def _bad_usage(_: Request, error: UsageError) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _try_later(_: Request, error: OutsideError) -> Response:
    return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": str(RETRY_AFTER_S)})


async def _http_error(request: Request, error: HTTPException) -> Response:
    why = error.detail
    if error.status_code == 405 or "endpoint" not in request.scope:
        why = f"slurm-gpudbd {slurm_gpu.__version__} has no {request.method} {request.url.path}"
    return JSONResponse({"error": why}, error.status_code, headers=error.headers)


async def _gone(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=400)  # nobody is there to read it
