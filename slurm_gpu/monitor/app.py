"""slurm-gpuweb as an ASGI application: docs/contracts.md, section 8."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import slurm_gpu
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.monitor import told
from slurm_gpu.monitor.answer import OCTETS
from slurm_gpu.monitor.board import Board
from slurm_gpu.monitor.events import Events
from slurm_gpu.monitor.listing import RETRY_AFTER_S, Listing, Told
from slurm_gpu.monitor.viewer import NotSignedInError, ViewerOf, viewer_of

LISTINGS = (
    ("/api/v1/frame", Told("frame", told.frame, "metric", "util", OCTETS, of_metric=True)),
    ("/api/v1/jobs", Told("jobs", told.jobs, "since")),
    ("/api/v1/layout", Told("layout", told.layout, for_all=True)),
    ("/api/v1/attention", Told("attention", told.attention)),
)
"""Those that are asked for most come first."""


def make_app(board: Board, who: ViewerOf = viewer_of, more: Sequence[BaseRoute] = ()) -> Starlette:
    """The application; `who` says who asks, `more` are routes beside the API's."""
    routes: list[BaseRoute] = [
        Route(path, Listing(item, board, who), methods=["GET"]) for path, item in LISTINGS
    ]
    routes.append(Route("/api/v1/events", Events(board, who, time.monotonic), methods=["GET"]))
    routes += more
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        NotSignedInError: _not_signed_in,
        UsageError: _wrong,
        OutsideError: _away,
        HTTPException: _http_error,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def _not_signed_in(_: Request, error: NotSignedInError) -> Response:
    return JSONResponse({"error": str(error)}, 401)


async def _wrong(_: Request, error: UsageError) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _away(_: Request, error: OutsideError) -> Response:
    return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": str(RETRY_AFTER_S)})


async def _http_error(request: Request, error: HTTPException) -> Response:
    why = error.detail
    if error.status_code in (404, 405) and "endpoint" not in request.scope:
        why = f"slurm-gpuweb {slurm_gpu.__version__} has no {request.method} {request.url.path}"
    return JSONResponse({"error": why}, error.status_code, headers=error.headers)
