"""Serve the data of one job, read from slurm-gpudbd on request and reduced to what the viewer may see."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.errors import NotAllowedError, NotFoundError, UsageError
from slurm_gpu.monitor.cluster.responses import dump
from slurm_gpu.monitor.cluster.visible import visible, visible_timeline
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import CSV, JSON, CachedResponse, Header
from slurm_gpu.monitor.job.csv_file import runs_csv, timelines_csv, windows_csv
from slurm_gpu.monitor.job.newest import with_newest
from slurm_gpu.monitor.job.percentiles import by_device, of_records
from slurm_gpu.monitor.viewer import ViewerOf, Visibility
from slurm_gpu.reports.run_use.requested_use import requested_uses
from slurm_gpu.reports.run_use.suggestions import suggestions
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import Run, RunTimeline

_JOB = re.compile(r"[1-9][0-9]{0,17}(_[0-9]{1,9}|\+[0-9]{1,9})?")
FORMATS = ("json", "csv")


# Returns the body for (slurm-gpudbd, job, visibility, format); raises HTTPException.
MakeBody = Callable[[DatabaseClient, str, Visibility, str], bytes]


class JobPage:
    """An ASGI application that serves GET for one kind of data about a job."""

    def __init__(
        self,
        name: str,
        make_body: MakeBody,
        connect: Callable[[], DatabaseClient],
        viewer_of: ViewerOf,
        wall: Callable[[], float],
        slots: RequestSlots,
    ) -> None:
        self._name, self._make_body, self._connect = name, make_body, connect
        self._viewer_of, self._wall, self._slots = viewer_of, wall, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        viewer = self._viewer_of(request)
        job = read_job(request.path_params["job"])
        file_format = request.query_params.get("format", "json")
        if file_format not in FORMATS:
            raise UsageError(f"format: {file_format[:40]!r} must be json or csv")
        headers: list[Header] = [(b"x-as-of-s", f"{self._wall():.3f}".encode())]
        if file_format == "csv":
            file = f'attachment; filename="job-{job}-{self._name}.csv"'
            headers.append((b"content-disposition", file.encode()))

        def make() -> CachedResponse:
            with self._connect() as source:
                body = self._make_body(source, job, viewer.visibility, file_format)
            return CachedResponse(body, CSV if file_format == "csv" else JSON, headers)

        answer = await self._slots.run(viewer.user, make)
        await answer(scope, receive, send)


def is_job(text: str) -> bool:
    """Return whether the text is JOBID, JOBID_TASK or JOBID+OFFSET."""
    return _JOB.fullmatch(text) is not None


def read_job(text: str) -> str:
    """Check that the text is JOBID, JOBID_TASK or JOBID+OFFSET; raise UsageError otherwise."""
    if not is_job(text):
        raise UsageError(f"{text[:40]!r} is not a job; write JOBID, JOBID_TASK or JOBID+OFFSET")
    return text


def forecast_id(job: ClusterJob) -> str:
    """Return the job ID for requests to slurm-gpudbd, in the form that users see.

    For pending array tasks that Slurm has not split yet (9_2-3%1), return the ID of the array.
    """
    return job.id if _JOB.fullmatch(job.id) is not None else str(job.job_id)


def runs_body(
    source: DatabaseClient, job: str, visibility: Visibility, file_format: str, *, min_coverage: float
) -> bytes:
    """Return the runs of a job with p25 and p95 of each metric, the use of what it requested, and advice."""
    runs = [visible(run, visibility) for run in _runs(source, job)]
    found = source.timelines(job) if any(run.full for run in runs) else ()
    timelines = {(item.job_id, item.submit_s): item for item in found}
    if file_format == "csv":
        return runs_csv(runs, timelines).encode()
    return dump({"runs": [_run(run, timelines, min_coverage) for run in runs]})


def timelines_body(source: DatabaseClient, job: str, visibility: Visibility, file_format: str) -> bytes:
    """Return the timelines of each run's devices. In JSON, they include the newest values of running jobs."""
    runs = _runs(source, job)
    full = {(run.job_id, run.submit_s) for run in runs if visibility.may_see(run.user, run.uid)}
    found = [visible_timeline(item, (item.job_id, item.submit_s) in full) for item in source.timelines(job)]
    if file_format == "csv":
        return timelines_csv(found).encode()
    return dump({"runs": to_json(with_newest(source, job, runs, found))})


def windows_body(source: DatabaseClient, job: str, visibility: Visibility, file_format: str) -> bytes:
    """Return the last ten minutes; raise HTTPException 403 if the viewer may not see all runs in full."""
    runs = _runs(source, job)
    if not all(visibility.may_see(run.user, run.uid) for run in runs):
        raise HTTPException(
            403, f"job {job} belongs to another user; only its owner and operators may see its window"
        )
    try:
        found = source.windows(job)
    except NotAllowedError as error:
        raise HTTPException(403, str(error)) from error
    except NotFoundError as error:
        raise HTTPException(404, f"job {job} is not running and has no stored window") from error
    if file_format == "csv":
        return windows_csv(found).encode()
    return dump({"windows": to_json(found), "requested": not found})


def _runs(source: DatabaseClient, job: str) -> Sequence[Run]:
    runs = source.run(job)
    if not runs:
        raise HTTPException(404, f"job {job} has no runs")
    return runs


def _run(run: Run, timelines: Mapping[tuple[int, int], RunTimeline], min_coverage: float) -> dict[str, Any]:
    """Return a run in the format of slurm-gpudbd, with derived values if the run is shown in full."""
    shown = run.to_json()
    if not run.full:
        return {**shown, "percentiles": None, "by_device": None, "use": None, "suggestions": None}
    timeline = timelines.get((run.job_id, run.submit_s))
    devices = () if timeline is None or timeline.devices is None else timeline.devices
    each = by_device(run.devices or (), devices)
    return {
        **shown,
        "percentiles": to_json(of_records(run.devices or (), devices)),
        "by_device": [
            {"node": node, "device": device, "percentiles": to_json(metrics)}
            for (node, device), metrics in each.items()
        ],
        "use": [use.to_json() for use in requested_uses(run)],
        "suggestions": list(suggestions(run, min_coverage)),
    }
