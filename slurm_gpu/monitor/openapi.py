"""The OpenAPI 3.1 document of the API, made of the table of its routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import slurm_gpu
from slurm_gpu.monitor import schemas
from slurm_gpu.monitor.routes import ApiRoute, RouteParameter

_REFUSED = {
    "400": "the request cannot be carried out as it is written",
    "401": "nobody is signed in",
    "503": "slurm-gpudbd does not answer, and has not since slurm-gpuweb started",
}
_MISSING = {"403": "another user's", "404": "not known here"}
_HEADERS = {
    "ETag": {"description": "send it back as If-None-Match", "schema": schemas.TEXT},
    "X-As-Of-S": {"description": "when what is told was true, UTC epoch seconds", "schema": schemas.NUMBER},
}


def document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """For GET /openapi.json."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slurm-gpuweb",
            "version": slurm_gpu.__version__,
            "description": (
                "The whole cluster and every job. Users see their own jobs in full and of others' the "
                "occupancy, operators all. Times are UTC epoch seconds; null and 255 mean not measured, 0 is "
                "a measurement."
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
            "304": {"description": "as If-None-Match says"},
            **{status: {"description": why, "content": error} for status, why in sorted(refused.items())},
        },
    }


def _parameter(item: RouteParameter) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": item.name,
        "in": "path" if item.in_path else "query",
        "required": item.in_path,
        "description": item.meaning,
        "schema": item.schema,
    }
    return {**told, "example": item.example} if item.example else told
