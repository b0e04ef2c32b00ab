"""Train the forecast model of a site on its runs, and forecast the waits of jobs in its queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu.forecast.drivers import Driver, drivers
from slurm_gpu.forecast.forecaster import Correction, Forecaster, ForecastIntervals, Learner, train
from slurm_gpu.forecast.queue import TABLE_ORDER, Runs, Vocabulary, past_samples, samples_for
from slurm_gpu.forecast.samples import Floats


@dataclass(frozen=True, slots=True)
class ForecastModel:
    """A trained forecast model, which needs only the current queue to forecast."""

    forecaster: Forecaster
    vocabulary: Vocabulary
    typical: Floats
    """Features of a typical job."""
    n_samples: int
    """Number of samples of waiting jobs in the training data."""
    since_s: float
    """Time of the first sample."""
    read_error: str = ""
    """The error if the stored regression cannot be read; otherwise empty.

    With an error, forecasts come from the tables.
    """

    def forecast(self, queue: Runs, wanted: Runs, now_s: float) -> ForecastIntervals:
        """Return the remaining waits of the `wanted` jobs, given the current queue."""
        return self.forecaster.forecast(samples_for(queue, wanted, self.vocabulary, now_s))

    def drivers(self, queue: Runs, wanted: Runs, now_s: float) -> list[Driver]:
        """Return the drivers of the forecast of one job."""
        return drivers(self.forecaster, samples_for(queue, wanted, self.vocabulary, now_s), self.typical)

    def correction(self, wanted: Runs) -> Correction | None:
        """Return the correction for the job's kind; None if the history was too short."""
        kind = "gpu" if wanted.gpus[0] > 0 else "cpu"
        return self.forecaster.corrections.get(kind)


def make_model(runs: Runs, now_s: float, learner: Learner | None = None) -> ForecastModel:
    """Train a model on a site's runs as known at `now_s`; later events are ignored."""
    runs = known_runs(runs, now_s)
    vocabulary = Vocabulary.of(runs)
    samples = past_samples(runs, vocabulary, now_s)
    past = samples.known_at(now_s)
    forecaster = train(past, TABLE_ORDER, samples.names, learner)
    n = len(past.wait_s)
    typical = np.median(past.samples.features, axis=0) if n else np.zeros(len(samples.names))
    since_s = float(past.samples.at_s.min()) if n else now_s
    return ForecastModel(forecaster, vocabulary, typical.astype(float), n, since_s)


def known_runs(runs: Runs, now_s: float) -> Runs:
    """Return the runs as they were known at `now_s`."""
    here = runs[runs.eligible_s <= now_s]
    columns = {name: getattr(here, name) for name in Runs.__slots__}
    for name in ("start_s", "end_s"):
        columns[name] = np.where(columns[name] <= now_s, columns[name], np.nan)
    return Runs(**columns)
