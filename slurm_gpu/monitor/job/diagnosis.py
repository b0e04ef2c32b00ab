"""Serve the diagnosis of a run: GET /diagnosis?id=JOB as a page, GET /api/v1/jobs/JOB/diagnosis as JSON.

Both are only for viewers who may see the job in full.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.errors import DatabaseError, OutsideError, UsageError
from slurm_gpu.monitor.cluster.responses import read_whole
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.job.drawing import DrawingProcess
from slurm_gpu.monitor.job.pages import read_job
from slurm_gpu.monitor.page.files import DRAWN_POLICY, address_of
from slurm_gpu.monitor.viewer import NotSignedInError, Viewer, ViewerOf, Visibility
from slurm_gpu.reports.diagnosed.missing_data import stale_nodes, why_no_data
from slurm_gpu.text.hostlist import compress
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import NodeWindow

PATH = "/diagnosis"
_HEADERS = {
    "Content-Security-Policy": DRAWN_POLICY,
    "Cache-Control": "private, no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class DiagnosisSettings:
    """The settings of slurm-gpu.yaml that a diagnosis uses."""

    min_coverage: float = 0.8
    timezone: str = "UTC"


class Diagnoses:
    """Diagnoses runs for viewers, each in its own process."""

    def __init__(
        self,
        connect: Callable[[], DatabaseClient],
        wall: Callable[[], float],
        slots: RequestSlots,
        drawing: DrawingProcess,
        settings: DiagnosisSettings,
    ) -> None:
        self._connect, self.wall = connect, wall
        self._slots, self._drawing, self._settings = slots, drawing, settings

    async def of(self, viewer: Viewer, job: str, run: str, form: Literal["page", "verdict"]) -> bytes:
        """Return the diagnosis of a job's run with the submit time `run`, or of its newest run if "".

        Raise HTTPException if there is none, or the viewer may not see it.
        """
        job, submit_s = read_job(job), read_whole("run", run)

        def ask() -> bytes:
            with self._connect() as source:
                return self._input(source, job, submit_s, viewer.visibility, form)

        return await self._drawing.draw(viewer.user, await self._slots.run(viewer.user, ask))

    def _input(
        self, source: DatabaseClient, job: str, submit_s: int | None, visibility: Visibility, form: str
    ) -> bytes:
        runs = source.run(job)
        chosen = [run for run in runs if submit_s is None or run.submit_s == submit_s]
        if not chosen:
            raise HTTPException(404, f"job {job} does not exist, or has no run with this submit time")
        run = chosen[0]
        if not run.full or not visibility.may_see(run.user, run.uid):
            raise HTTPException(
                403, f"job {job} belongs to another user; only its owner and operators may diagnose it"
            )
        if not run.devices:
            raise HTTPException(404, why_no_data(run))
        newest = (run.job_id, run.submit_s) == (runs[0].job_id, runs[0].submit_s)
        found = _windows(source, job) if newest else None
        windows = found or ()
        silent = () if found is None else stale_nodes(run, windows)
        hosts = source.hosts(job) if windows and run.end_s is None else ()
        request = {
            "form": form,
            "run": run.to_json(),
            "windows": to_json(windows),
            "hosts": to_json(hosts),
            "timelines": [
                to_json(item)
                for item in source.timelines(job)
                if (item.job_id, item.submit_s) == (run.job_id, run.submit_s)
            ],
            "min_coverage": self._settings.min_coverage,
            "timezone": self._settings.timezone,
            "now_s": self.wall(),
            "site": {
                "style": address_of("diagnosis.css"),
                "script": address_of("diagnosis.js"),
                "icon": address_of("icon.svg"),
                "job": f"job?id={quote(job, safe='')}",
                "again": f"diagnosis?id={quote(job, safe='')}" if silent or found == () else "",
                "silent": compress(silent) if windows else "",
            },
        }
        return json.dumps(request).encode()


class DiagnosisPage:
    """The endpoint of the page. Errors are also shown as pages, since users follow links to this page."""

    def __init__(self, diagnoses: Diagnoses, viewer_of: ViewerOf) -> None:
        self._diagnoses, self._viewer_of = diagnoses, viewer_of

    async def get(self, request: Request) -> Response:
        """Answer a request."""
        try:
            viewer = self._viewer_of(request)
            job, run = (request.query_params.get(name, "") for name in ("id", "run"))
            page = await self._diagnoses.of(viewer, job, run, "page")
        except NotSignedInError as error:
            return _error_page(401, str(error))
        except UsageError as error:
            return _error_page(400, str(error))
        except OutsideError as error:
            return _error_page(503, str(error), {"Retry-After": "5"})
        except HTTPException as error:
            return _error_page(error.status_code, error.detail, dict(error.headers or {}))
        return Response(page, media_type="text/html", headers=_HEADERS)


class VerdictPage:
    """An ASGI application that serves GET /api/v1/jobs/{job}/diagnosis: the verdict without figures."""

    def __init__(self, diagnoses: Diagnoses, viewer_of: ViewerOf) -> None:
        self._diagnoses, self._viewer_of = diagnoses, viewer_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        viewer = self._viewer_of(request)
        run = request.query_params.get("run", "")
        body = await self._diagnoses.of(viewer, request.path_params["job"], run, "verdict")
        headers = [(b"x-as-of-s", f"{self._diagnoses.wall():.3f}".encode())]
        await CachedResponse(body, JSON, headers)(scope, receive, send)


def _windows(source: DatabaseClient, job: str) -> Sequence[NodeWindow] | None:
    """Return the windows of a job; empty if they have just been requested, None if unavailable."""
    try:
        return source.windows(job)
    except DatabaseError:
        # If there is no window or the nodes do not answer, the timeline is used.
        return None


def _error_page(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    head = (
        '<meta charset="utf-8"><title>No diagnosis</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    links = (
        f'<link rel="icon" href="{address_of("icon.svg")}" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{address_of("diagnosis.css")}">'
    )
    header = '<header><p class="back"><a href=".">All GPUs</a></p><h1>No diagnosis</h1></header>'
    page = (
        f'<!doctype html>\n<html lang="en"><head>{head}{links}</head><body>{header}'
        f"<main><section><p>{html.escape(why)}.</p></section></main></body></html>\n"
    )
    return Response(page, status, {**_HEADERS, **(headers or {})}, media_type="text/html")
