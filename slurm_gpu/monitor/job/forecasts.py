"""Request forecasts of pending jobs from slurm-gpudbd, and cache them for a minute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.client.forecast_text import accuracy_in_words
from slurm_gpu.clock import Clock
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.monitor.job.pages import forecast_id
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.codec import to_json

KEPT_S = 60.0
_MOST_KEPT = 10_000

# A forecast with its accuracy in words, or the reason why there is none.
ForecastAnswer = Mapping[str, Any]


class Forecasts:
    """Cached forecasts by job ID; thread-safe."""

    def __init__(self, connect: Callable[[], DatabaseClient], clock: Clock) -> None:
        self._connect, self._clock = connect, clock
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[float, ForecastAnswer]] = {}

    def of(self, jobs: Iterable[ClusterJob]) -> dict[int, ForecastAnswer]:
        """Return `forecast`, `accuracy` and `why` (the reason if there is no forecast) of each job."""
        jobs = list(jobs)
        found = {job.job_id: known for job in jobs if (known := self._known(job.job_id)) is not None}
        if len(found) < len(jobs):
            with self._connect() as source:
                for job in jobs:
                    if job.job_id not in found:
                        found[job.job_id] = self._request(source, job)
        return {job.job_id: found[job.job_id] for job in jobs}

    def _known(self, job_id: int) -> ForecastAnswer | None:
        with self._lock:
            until, answer = self._kept.get(job_id, (0.0, None))
        return answer if self._clock.monotonic() < until else None

    def _request(self, source: DatabaseClient, job: ClusterJob) -> ForecastAnswer:
        try:
            found = source.forecast(forecast_id(job))
        # There is no forecast for a job that is held or has just started.
        except (OutsideError, UsageError) as error:
            found = str(error)
        if isinstance(found, str):
            answer: ForecastAnswer = {"forecast": None, "accuracy": [], "why": found}
        else:
            answer = {"forecast": to_json(found), "accuracy": accuracy_in_words(found), "why": None}
        with self._lock:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[job.job_id] = self._clock.monotonic() + KEPT_S, answer
        return answer
