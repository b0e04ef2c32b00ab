"""Train models of waiting times on accounting data, and store them for slurm-gpudbd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.database.forecasts.runs import job_run, past_runs, queue_runs, waits
from slurm_gpu.database.forecasts.store import (
    Prediction,
    newest_model,
    read_model_body,
    remember,
    store_model,
)
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.forecast.forecaster import Correction, Learner
from slurm_gpu.forecast.model import make_model
from slurm_gpu.forecast.model_file import model_bytes, read_model
from slurm_gpu.forecast.queue import HISTORY_S, Runs
from slurm_gpu.forecast.samples import KINDS
from slurm_gpu.slurm.client import QueuedJob

SAMPLE = 200
"""Maximum number of pending jobs that `forecast_waiting` forecasts at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Statistics of a completed training."""

    runs: int
    samples: int
    bytes: int
    sources: dict[str, str]
    """The source of forecasts for each kind of job (`cpu` or `gpu`)."""
    corrections: dict[str, Correction]
    """For each kind of job with enough history, the errors of both sources."""


def train_from_database(
    database: Database, cluster: str, now_s: int, learner: Learner | None
) -> TrainingResult:
    """Train a model on the data up to `now_s` and store it; without a learner, use only tables."""
    with database.reading() as connection:
        runs = past_runs(connection, cluster, now_s - HISTORY_S)
    model = make_model(runs, float(now_s), learner)
    body = model_bytes(model)
    database.write(lambda connection: store_model(connection, cluster, now_s, body))
    return TrainingResult(
        runs=len(runs),
        samples=model.n_samples,
        bytes=len(body),
        sources={kind: model.forecaster.source_of(kind) for kind in KINDS},
        corrections=dict(model.forecaster.corrections),
    )


def forecast_waiting(
    database: Database, cluster: str, jobs: Sequence[QueuedJob], now_s: int, most: int = SAMPLE
) -> int:
    """Forecast pending jobs and store the forecasts, to measure accuracy even without user requests.

    The newest model forecasts at most `most` jobs, spread evenly over all pending jobs. Return the number
    of stored forecasts.
    """
    waiting = [job for job in jobs if waits(job, now_s)]
    taken = waiting if len(waiting) <= most else [waiting[n * len(waiting) // most] for n in range(most)]
    with database.reading() as connection:
        created_s = newest_model(connection, cluster, now_s)
        body = b"" if created_s is None else read_model_body(connection, cluster, created_s)
    if not taken or created_s is None:
        return 0
    model = read_model(body)
    if not model.n_samples:
        return 0
    forecast = model.forecast(queue_runs(jobs, now_s), Runs.joined([job_run(job) for job in taken]), now_s)
    rows = [
        Prediction.of(job.job_id, now_s, lower_s, median_s, upper_s, source, created_s)
        for job, lower_s, median_s, upper_s, source in zip(
            taken,
            forecast.lower_s.tolist(),
            forecast.median_s.tolist(),
            forecast.upper_s.tolist(),
            forecast.source.tolist(),
            strict=True,
        )
    ]
    return database.write(lambda connection: remember(connection, cluster, rows))


def installed_learner() -> Learner | None:
    """Return the learner that the extra `learn` provides; None if scikit-learn is not installed."""
    try:
        from slurm_gpu.forecast.learn import learn
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("sklearn", "scipy", "joblib"):
            raise
        return None
    return learn
