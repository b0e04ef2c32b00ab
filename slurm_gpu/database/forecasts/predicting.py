"""Forecast the waiting times of pending jobs from the latest model and slurmctld's current queue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from slurm_gpu.clock import Clock
from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.forecasts.outcomes import past_accuracy
from slurm_gpu.database.forecasts.runs import UnsubmittedJob, job_run, queue_runs, run_of_request
from slurm_gpu.database.forecasts.store import (
    Prediction,
    read_model_body,
    remember,
    stored_models,
)
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import DatabaseError
from slurm_gpu.forecast.model import ForecastModel
from slurm_gpu.forecast.model_file import read_model
from slurm_gpu.forecast.queue import Runs
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.wire.answers.forecast import Forecast, ForecastAccuracy, Reason

log = logging.getLogger(__name__)

NOTHING_LEARNED = (
    "no model has been trained for this cluster yet: on slurm-gpudbd's host, run "
    "`slurm-gpu forecast train`, or enable slurm-gpu-forecast.timer to train one every day"
)


class NoForecastError(Exception):
    """Raised if a forecast is not possible; the message states the reason."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The model in use: the newest one, or an older one if the newest is unreadable."""

    newest_s: int
    created_s: int
    model: ForecastModel
    remark: str | None


class Predictor:
    """Makes forecasts with the newest readable model; only one thread at a time may use it."""

    def __init__(self, database: Database, cluster: str, clock: Clock) -> None:
        self._database, self._cluster, self._clock = database, cluster, clock
        self._kept: _Kept | None = None
        self._seen: tuple[QueueState, Runs] | None = None

    def of_job(self, queue: QueueState, job: QueuedJob, name: str, caller: Caller) -> Forecast:
        """Forecast a pending job in the queue and store the forecast; raise NoForecastError if impossible."""
        full = caller.may_see(job.uid)
        forecast = self._forecast(queue, job_run(job), name, full=full)
        row = Prediction.of(
            job.job_id,
            forecast.at_s,
            forecast.lower_s,
            forecast.median_s,
            forecast.upper_s,
            forecast.source,
            forecast.created_s,
        )
        self._database.write(lambda connection: remember(connection, self._cluster, [row]))
        return forecast

    def of_asked(self, queue: QueueState, asked: UnsubmittedJob) -> Forecast:
        """Forecast a job that has not been submitted; raise NoForecastError if impossible."""
        wanted = run_of_request(asked, self._runs(queue), self._clock.wall())
        return self._forecast(queue, wanted, None, full=True)

    def _forecast(self, queue: QueueState, wanted: Runs, name: str | None, *, full: bool) -> Forecast:
        now_s = self._clock.wall()
        kept, runs = self._newest(), self._runs(queue)
        model = kept.model
        if not model.n_samples:
            raise NoForecastError("when the model was trained, accounting contained no job that had waited")
        forecast = model.forecast(runs, wanted, now_s)
        reasons: Sequence[Reason] = ()
        if full:
            reasons = [Reason(what=one.what, factor=one.factor) for one in model.drivers(runs, wanted, now_s)]
        correction = model.correction(wanted)
        judged = None
        if correction is not None and correction.is_validated:
            twice, thrice = correction.within[correction.source]
            judged = ForecastAccuracy(kinds=correction.judged, within_2x=twice, within_3x=thrice)
        with self._database.reading() as connection:
            past = past_accuracy(connection, self._cluster, int(now_s))
        return Forecast(
            id=name,
            full=full,
            at_s=int(now_s),
            lower_s=float(forecast.lower_s[0]),
            median_s=float(forecast.median_s[0]),
            upper_s=float(forecast.upper_s[0]),
            source=str(forecast.source[0]),
            reasons=reasons,
            created_s=kept.created_s,
            samples=model.n_samples,
            since_s=int(model.since_s),
            with_gpus=bool(wanted.gpus[0] > 0),
            judged=judged,
            past=past,
            remark=kept.remark,
        )

    def _newest(self) -> _Kept:
        """Return the newest readable model; raise NoForecastError if none is readable."""
        with self._database.reading() as connection:
            made = stored_models(connection, self._cluster, self._clock.wall())
            if not made:
                raise NoForecastError(NOTHING_LEARNED)
            if self._kept is None or self._kept.newest_s != made[0]:
                self._kept = self._read(connection, made)
        return self._kept

    def _read(self, connection: Connection, made: Sequence[int]) -> _Kept:
        wrong = ""
        for created_s in made:
            try:
                model = read_model(read_model_body(connection, self._cluster, created_s))
            except DatabaseError as error:
                log.warning("forecasts: the model created at %d is not used: %s", created_s, error)
                wrong = wrong or str(error)
                continue
            if wrong:
                remark = f"{wrong}, so an older model is used"
            elif model.read_error:
                log.warning(
                    "forecasts: only the tables of the model created at %d are used: %s",
                    created_s,
                    model.read_error,
                )
                remark = f"the newest model cannot be read, so tables are used: {model.read_error}"
            else:
                remark = None
            return _Kept(made[0], created_s, model, remark)
        # An unreadable model does not cause a DatabaseError, because retrying does not help.
        raise NoForecastError(f"{wrong}: run `slurm-gpu forecast train` on slurm-gpudbd's host")

    def _runs(self, queue: QueueState) -> Runs:
        if self._seen is None or self._seen[0] is not queue:
            self._seen = queue, queue_runs(queue.by_id.values(), queue.as_of_s)
        return self._seen[1]
