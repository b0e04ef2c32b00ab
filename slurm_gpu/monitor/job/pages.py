"""All that is known of one job: asked of slurm-gpudbd when somebody looks, and told as far as may be."""

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
from slurm_gpu.monitor.job.percentiles import by_device, of_records
from slurm_gpu.monitor.viewer import Flavour, ViewerOf
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import Run, RunTimeline

_JOB = re.compile(r"[1-9][0-9]{0,17}(_[0-9]{1,9}|\+[0-9]{1,9})?")
FORMATS = ("json", "csv")


Tell = Callable[[DatabaseClient, str, Flavour, str], bytes]
"""(slurm-gpudbd, job, who asks, format) to a body; raises HTTPException."""


class JobPage:
    """GET of one kind of data of a job, as an ASGI application."""

    def __init__(
        self,
        name: str,
        tell: Tell,
        connect: Callable[[], DatabaseClient],
        viewer_of: ViewerOf,
        wall: Callable[[], float],
        turns: RequestSlots,
    ) -> None:
        self._name, self._tell, self._connect = name, tell, connect
        self._viewer_of, self._wall, self._turns = viewer_of, wall, turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        viewer = self._viewer_of(request)
        job = read_job(request.path_params["job"])
        asked = request.query_params.get("format", "json")
        if asked not in FORMATS:
            raise UsageError(f"format: {asked[:40]!r} must be json or csv")
        headers: list[Header] = [(b"x-as-of-s", f"{self._wall():.3f}".encode())]
        if asked == "csv":
            file = f'attachment; filename="job-{job}-{self._name}.csv"'
            headers.append((b"content-disposition", file.encode()))

        def make() -> CachedResponse:
            with self._connect() as source:
                body = self._tell(source, job, viewer.flavour, asked)
            return CachedResponse(body, CSV if asked == "csv" else JSON, headers)

        answer = await self._turns.run(viewer.user, make)
        await answer(scope, receive, send)


def read_job(text: str) -> str:
    """JOBID, JOBID_TASK or JOBID+OFFSET; raises UsageError for anything else."""
    if _JOB.fullmatch(text) is None:
        raise UsageError(f"{text[:40]!r} is not a job; write JOBID, JOBID_TASK or JOBID+OFFSET")
    return text


def id_to_ask_by(job: ClusterJob) -> str:
    """As users know it; of an array whose tasks are not apart yet (9_2-3%1) the array's."""
    return job.id if _JOB.fullmatch(job.id) is not None else str(job.job_id)


def tell_runs(source: DatabaseClient, job: str, flavour: Flavour, asked: str) -> bytes:
    """Its runs with p25 and p95 of each metric."""
    runs = [visible(run, flavour) for run in _runs(source, job)]
    told = source.timelines(job) if any(run.full for run in runs) else ()
    courses = {(item.job_id, item.submit_s): item for item in told}
    if asked == "csv":
        return runs_csv(runs, courses).encode()
    return dump({"runs": [_run(run, courses) for run in runs]})


def tell_timelines(source: DatabaseClient, job: str, flavour: Flavour, asked: str) -> bytes:
    """The course of each run on each of its devices."""
    runs = _runs(source, job)
    full = {(run.job_id, run.submit_s) for run in runs if flavour.may_see(run.user, run.uid)}
    found = [visible_timeline(item, (item.job_id, item.submit_s) in full) for item in source.timelines(job)]
    if asked == "csv":
        return timelines_csv(found).encode()
    return dump({"runs": to_json(found)})


def tell_windows(source: DatabaseClient, job: str, flavour: Flavour, asked: str) -> bytes:
    """The last ten minutes; 403 where not all of its runs may be seen."""
    runs = _runs(source, job)
    if not all(flavour.may_see(run.user, run.uid) for run in runs):
        raise HTTPException(403, f"job {job} is another user's; its owner and operators may see its window")
    try:
        found = source.windows(job)
    except NotAllowedError as error:
        raise HTTPException(403, str(error)) from error
    except NotFoundError as error:
        raise HTTPException(404, f"no window of job {job} was kept, and it does not run") from error
    if asked == "csv":
        return windows_csv(found).encode()
    return dump({"windows": to_json(found), "asked": not found})


def _runs(source: DatabaseClient, job: str) -> Sequence[Run]:
    runs = source.run(job)
    if not runs:
        raise HTTPException(404, f"no run of job {job} is known here")
    return runs


def _run(run: Run, courses: Mapping[tuple[int, int], RunTimeline]) -> dict[str, Any]:
    """As slurm-gpudbd has it, and what its records come to; a run that is not shown in full has none."""
    told = run.to_json()
    if not run.full:
        return {**told, "percentiles": None, "by_device": None}
    course = courses.get((run.job_id, run.submit_s))
    devices = () if course is None or course.devices is None else course.devices
    each = by_device(run.devices or (), devices)
    return {
        **told,
        "percentiles": to_json(of_records(run.devices or (), devices)),
        "by_device": [
            {"node": node, "device": device, "percentiles": to_json(metrics)}
            for (node, device), metrics in each.items()
        ],
    }
