"""Serve GET /v1/forecast: how long a pending job, or one not submitted yet, will wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.request import authenticated, parameters
from slurm_gpu.database.queries.run_queries import job_name, rows_of_job
from slurm_gpu.database.services import Services
from slurm_gpu.errors import SlurmError, UsageError
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.text.cells import span
from slurm_gpu.text.hostlist import task_ranges
from slurm_gpu.wire.answers.forecast import Forecast

if TYPE_CHECKING:
    from slurm_gpu.database.forecasts.predicting import Predictor

_SKEW_S = 30
"""Allowed difference between the clocks of slurmctld and of this host."""


class ForecastApi:
    """The endpoints under /v1/forecast; the first request loads numpy.

    Only one forecast is computed at a time.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._predictor: Predictor | None = None
        self._making = threading.Lock()
        # Callers that wait for another forecast must not block the threads for other requests.
        self._one: anyio.CapacityLimiter | None = None

    async def get_forecast(self, request: Request) -> Response:
        """Serve GET /v1/forecast."""
        await authenticated(self._services.authenticator, request)
        query = parameters(request)

        def forecast() -> Forecast:
            from slurm_gpu.database.forecasts.runs import UnsubmittedJob

            return self._get_predictor().of_asked(self._queue(), UnsubmittedJob.from_query(query))

        return await self._answer(forecast)

    async def get_job_forecast(self, request: Request) -> Response:
        """Serve GET /v1/forecast/{job}."""
        caller = await authenticated(self._services.authenticator, request)
        parameters(request)
        job = request.path_params["job"]
        return await self._answer(lambda: self._of_job(job, caller))

    def _of_job(self, job: str, caller: Caller) -> Forecast:
        queue = self._queue()
        waiting = _named(queue, job)
        if waiting is None:
            raise UsageError(self._why_not(job))
        if (why := _kept_back(waiting, self._services.clock.wall())) is not None:
            raise UsageError(f"job {job} {why}")
        return self._get_predictor().of_job(queue, waiting, job, caller)

    def _queue(self) -> QueueState:
        queue = self._services.view.queue_now()
        if queue is None:
            raise SlurmError("slurmctld does not answer, so the pending jobs are unknown")
        return queue

    def _get_predictor(self) -> Predictor:
        from slurm_gpu.database.forecasts.predicting import Predictor

        with self._making:
            if self._predictor is None:
                services = self._services
                self._predictor = Predictor(services.database, services.cluster, services.clock)
            return self._predictor

    async def _answer(self, forecast: Callable[[], Forecast]) -> Response:
        if self._one is None:
            self._one = anyio.CapacityLimiter(1)

        def answer() -> dict[str, Any]:
            from slurm_gpu.database.forecasts.predicting import NoForecastError

            try:
                return {"forecast": forecast()}
            except NoForecastError as error:
                return {"forecast": None, "why": str(error)}

        return Answer(await anyio.to_thread.run_sync(answer, limiter=self._one))

    def _why_not(self, job: str) -> str:
        """Return the reason why a job is not pending, and how long it waited if it has started."""
        with self._services.database.reading() as connection:
            rows = rows_of_job(connection, self._services.cluster, job)
        if not rows:
            return f"there is no job {job} in slurmctld's queue or in Slurm's accounting"
        row = rows[0]
        start_s, end_s, eligible_s = row["start_s"], row["end_s"], row["eligible_s"]
        waited = ""
        if start_s is not None and eligible_s is not None and start_s >= eligible_s:
            waited = f"; it waited {span(start_s - eligible_s)}"
        if start_s is None and end_s is None:  # the queue and accounting are not read at the same moment
            return f"job {job} is no longer pending"
        state = "is running" if end_s is None else f"has ended: {row['state']}"
        return f"job {job_name(row)} {state}{waited}"


def _named(queue: QueueState, job: str) -> QueuedJob | None:
    """Return the first pending job that matches JOBID, JOBID_TASK or JOBID+OFFSET."""
    number, underscore, task = job.partition("_")
    first, plus, offset = job.partition("+")
    found = []
    for one in queue.by_id.values():
        if one.state != "PENDING":
            continue
        if underscore:
            fits = str(one.array_job_id) == number and _has_task(one, task)
        elif plus:
            fits = str(one.het_job_id) == first and str(one.het_offset) == offset
        else:
            fits = job in (str(one.job_id), str(one.array_job_id), str(one.het_job_id))
        if fits:
            found.append(one)
    return min(found, key=lambda one: one.job_id, default=None)


def _has_task(job: QueuedJob, task: str) -> bool:
    """Return whether a queued job is this task, or its array before Slurm splits the task off."""
    if not task.isdecimal() or job.array_task is None:
        return False
    try:
        return any(int(task) in tasks for tasks in task_ranges(job.array_task))
    except ValueError:  # a long expression ends in "..."
        return job.n_tasks > 1


def _kept_back(job: QueuedJob, now_s: float) -> str | None:
    """Return why a pending job could not start now even with free resources; None if it could start."""
    if job.reason == "JobHeldAdmin":
        return "is held by an admin, so its start cannot be predicted"
    if job.reason == "JobHeldUser":
        return f"is held, so it has no forecast; to release it, run `scontrol release {job.job_id}`"
    if job.reason.startswith("Dependency"):
        return "waits for another job (--dependency), whose end is not predicted"
    if job.eligible_s is None:
        return f"cannot start yet ({job.reason}), so it has no forecast yet"
    if job.eligible_s > now_s + _SKEW_S:
        return f"cannot start for another {span(job.eligible_s - now_s)} (--begin): repeat the request later"
    return None
