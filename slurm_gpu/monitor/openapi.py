"""Build the OpenAPI 3.1 document of the API from its table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import slurm_gpu
from slurm_gpu.monitor import schemas
from slurm_gpu.monitor.routes import ApiRoute, RouteParameter

_REFUSED = {
    "400": "the request is invalid",
    "401": "no user is signed in",
    "503": "slurm-gpudbd has not answered since slurm-gpuweb started",
}
_MISSING = {"403": "the job belongs to another user", "404": "the job is unknown"}
_HEADERS = {
    "ETag": {"description": "value for If-None-Match in later requests", "schema": schemas.TEXT},
    "X-Timezone": {"description": "the site's time zone, in which pages show times", "schema": schemas.TEXT},
    "X-As-Of-S": {"description": "time of the data, UTC epoch seconds", "schema": schemas.NUMBER},
}


def document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """Return the document for GET /openapi.json."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slurm-gpuweb",
            "version": slurm_gpu.__version__,
            "description": (
                "The state of the whole cluster and of every job. Users see their own jobs in full and the "
                "occupancy of others; operators see all jobs in full. Times are UTC epoch seconds. The "
                "values null and 255 mean that nothing was measured; 0 is a measured value."
            ),
        },
        "paths": {route.path: {"get": _operation(route)} for route in routes},
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    content = {media.decode().partition(";")[0]: {"schema": schema} for media, schema in route.answers}
    refused = {**_REFUSED, **(_MISSING if route.missing else {})}
    error = {"application/json": {"schema": schemas.ERROR}}
    return {
        "summary": route.summary,
        "parameters": [_parameter(item) for item in route.parameters],
        "responses": {
            "200": {"description": route.summary, "headers": _HEADERS, "content": content},
            "304": {"description": "the answer is unchanged since the ETag in If-None-Match"},
            **{status: {"description": why, "content": error} for status, why in sorted(refused.items())},
        },
    }


def _parameter(item: RouteParameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": item.name,
        "in": "path" if item.in_path else "query",
        "required": item.in_path,
        "description": item.meaning,
        "schema": item.schema,
    }
    return {**described, "example": item.example} if item.example else described
