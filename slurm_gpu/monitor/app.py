"""Define slurm-gpuweb as an ASGI application, as described in docs/contracts.md, section 8."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import slurm_gpu
from slurm_gpu.errors import NotFoundError, OutsideError, UsageError
from slurm_gpu.monitor.cluster.responses import dump
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.job.diagnosis import PATH, DiagnosisPage
from slurm_gpu.monitor.openapi import document
from slurm_gpu.monitor.page.serve import page_routes
from slurm_gpu.monitor.routes import ROUTES, RouteContext
from slurm_gpu.monitor.viewer import NotSignedInError

RETRY_AFTER_S = 5


def make_app(site: RouteContext, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application. `more` contains additional routes, such as those for signing in."""
    api = [Route(route.path, route.make(site), methods=["GET"]) for route in ROUTES]
    described = CachedResponse(dump(document(ROUTES)), JSON)
    openapi = Route("/openapi.json", described, methods=["GET"])
    diagnosis = DiagnosisPage(site.diagnoses, site.viewer_of)
    drawn = Route(PATH, diagnosis.get, methods=["GET"])
    routes: list[BaseRoute] = [*api, openapi, *page_routes(site.links), drawn, *more]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        NotSignedInError: _not_signed_in,
        UsageError: _wrong,
        NotFoundError: _unknown,
        OutsideError: _unavailable,
        HTTPException: _http_error,
    }
    zone = Middleware(_WithTimezone, timezone=site.diagnosis_settings.timezone)
    app = Starlette(routes=routes, exception_handlers=handlers, middleware=[zone])
    # A redirect would use the host in the client's Host header, which is the wrong host behind a proxy.
    app.router.redirect_slashes = False
    return app


class _WithTimezone:
    """Middleware that adds the site's time zone to each answer, so that all pages use the same zone."""

    def __init__(self, app: ASGIApp, timezone: str) -> None:
        self._app, self._header = app, (b"x-timezone", timezone.encode("ascii"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        await self._app(scope, receive, add)


async def _not_signed_in(_: Request, error: NotSignedInError) -> Response:
    return _refused(str(error), 401)


async def _wrong(_: Request, error: UsageError) -> Response:
    return _refused(str(error), 400)


async def _unknown(_: Request, error: NotFoundError) -> Response:
    return _refused(str(error), 404)


async def _unavailable(_: Request, error: OutsideError) -> Response:
    return _refused(str(error), 503, {"Retry-After": str(RETRY_AFTER_S)})


async def _http_error(request: Request, error: HTTPException) -> Response:
    why = error.detail
    if error.status_code in (404, 405) and "endpoint" not in request.scope:
        why = f"slurm-gpuweb {slurm_gpu.__version__} has no {request.method} {request.scope['path']}"
    return _refused(why, error.status_code, error.headers)


def _refused(why: str, status: int, more: Mapping[str, str] | None = None) -> Response:
    """Return an error response that is not cached, since it depends on the user and the session."""
    return JSONResponse({"error": why}, status, {"Cache-Control": "no-store", **(more or {})})
