"""Forecasts of jobs that wait, by what was learned last and by slurmctld's queue as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slurm_gpu.clock import Clock
from slurm_gpu.database.engine import Database
from slurm_gpu.database.forecasts.answer import Forecast, Judged, Reason
from slurm_gpu.database.forecasts.runs import Asked, asked_run, job_run, queue_runs
from slurm_gpu.database.forecasts.store import (
    Foretold,
    newest_model,
    past_accuracy,
    read_model_body,
    remember,
)
from slurm_gpu.database.identity import Caller
from slurm_gpu.database.slurmview import Queue
from slurm_gpu.errors import DatabaseError
from slurm_gpu.forecast.model import Model, read_model
from slurm_gpu.forecast.queue import Runs
from slurm_gpu.slurm.client import QueuedJob

NOTHING_LEARNED = (
    "nothing has been learned of this cluster's waits yet; where slurm-gpudbd runs, "
    "`slurm-gpu db train` does it, and slurm-gpu-forecast.timer every day"
)
_LONGEST_S = 2**40


class NoForecastError(Exception):
    """Too little is known for any; says why."""


class Foretelling:
    """Keeps the newest model; for one thread at a time."""

    def __init__(self, database: Database, cluster: str, clock: Clock) -> None:
        self._database, self._cluster, self._clock = database, cluster, clock
        self._model: Model | None = None
        self._made_s: int | None = None
        self._seen: tuple[Queue, Runs] | None = None

    def of_job(self, queue: Queue, job: QueuedJob, name: str, caller: Caller) -> Forecast:
        """Of a job that waits in this queue; it is written down. Raises NoForecastError."""
        full = caller.may_see(job.uid, job.user)
        said = self._forecast(queue, job_run(job), name, full=full)
        row = Foretold(
            job_id=job.job_id,
            at_s=said.at_s,
            low_s=_whole(said.low_s, math.floor),
            middle_s=_whole(said.middle_s, round),
            high_s=_whole(said.high_s, math.ceil),
            source=said.source,
            made_s=said.made_s,
        )
        self._database.write(lambda connection: remember(connection, self._cluster, [row]))
        return said

    def of_asked(self, queue: Queue, asked: Asked) -> Forecast:
        """Of a job that is not submitted yet. Raises NoForecastError."""
        wanted = asked_run(asked, self._runs(queue), self._clock.wall())
        return self._forecast(queue, wanted, None, full=True)

    def _forecast(self, queue: Queue, wanted: Runs, name: str | None, *, full: bool) -> Forecast:
        now_s = self._clock.wall()
        model, runs = self._newest(), self._runs(queue)
        if not model.n_looks:
            raise NoForecastError("no job that waited was on record when forecasts were learned last")
        said = model.forecast(runs, wanted, now_s)
        reasons: Sequence[Reason] = ()
        if full:
            reasons = [Reason(what=one.what, factor=one.factor) for one in model.drivers(runs, wanted, now_s)]
        correction = model.correction(wanted)
        judged = None
        if correction is not None:
            twice, thrice = correction.within[correction.source]
            judged = Judged(kinds=correction.judged, within_2x=twice, within_3x=thrice)
        with self._database.reading() as connection:
            past = past_accuracy(connection, self._cluster, int(now_s))
        return Forecast(
            id=name,
            full=full,
            at_s=int(now_s),
            low_s=float(said.low_s[0]),
            middle_s=float(said.middle_s[0]),
            high_s=float(said.high_s[0]),
            source=str(said.source[0]),
            reasons=reasons,
            made_s=self._made_s if self._made_s is not None else 0,
            looks=model.n_looks,
            since_s=int(model.since_s),
            with_gpus=bool(wanted.gpus[0] > 0),
            judged=judged,
            past=past,
        )

    def _newest(self) -> Model:
        with self._database.reading() as connection:
            made_s = newest_model(connection, self._cluster, self._clock.wall())
            if self._model is not None and made_s == self._made_s:
                return self._model
            body = b"" if made_s is None else read_model_body(connection, self._cluster, made_s)
        if not body:
            raise NoForecastError(NOTHING_LEARNED)
        try:
            self._model, self._made_s = read_model(body), made_s
        except DatabaseError as error:
            # Asking again does not help, as it does where the database is away.
            raise NoForecastError(
                f"{error}: where slurm-gpudbd runs, `slurm-gpu db train` does it"
            ) from error
        return self._model

    def _runs(self, queue: Queue) -> Runs:
        if self._seen is None or self._seen[0] is not queue:
            self._seen = queue, queue_runs(queue.by_id.values(), queue.as_of_s)
        return self._seen[1]


def _whole(seconds: float, rounded: Callable[[float], int]) -> int:
    return min(rounded(seconds), _LONGEST_S)
