"""What was learned of a site's waits, and all that it takes to forecast of its queue from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu.forecast.drivers import Driver, drivers
from slurm_gpu.forecast.forecaster import Correction, Forecaster, ForecastIntervals, Learner, train
from slurm_gpu.forecast.queue import TABLE_ORDER, Runs, Vocabulary, look_for, past_looks
from slurm_gpu.forecast.samples import Floats


@dataclass(frozen=True, slots=True)
class ForecastModel:
    """All that a forecast of a job takes, but the queue as it is now."""

    forecaster: Forecaster
    vocabulary: Vocabulary
    typical: Floats
    """The features of an ordinary job."""
    n_looks: int
    since_s: float
    """How many looks at waiting jobs it stands on, and from when on."""
    lost: str = ""
    """Where the learned forecast that was stored cannot be read, why; then the tables forecast."""

    def forecast(self, queue: Runs, wanted: Runs, now_s: float) -> ForecastIntervals:
        """Of the jobs `wanted`, with what waits and runs now."""
        return self.forecaster.forecast(look_for(queue, wanted, self.vocabulary, now_s))

    def drivers(self, queue: Runs, wanted: Runs, now_s: float) -> list[Driver]:
        """What the forecast of one job hangs on."""
        return drivers(self.forecaster, look_for(queue, wanted, self.vocabulary, now_s), self.typical)

    def correction(self, wanted: Runs) -> Correction | None:
        """How near the last forecasts of such a job were; None where too little is known."""
        kind = "gpu" if wanted.gpus[0] > 0 else "cpu"
        return self.forecaster.corrections.get(kind)


def make_model(runs: Runs, now_s: float, learner: Learner | None = None) -> ForecastModel:
    """Of what was known of a site's runs at `now_s`; what lies later in them is not looked at."""
    runs = known_runs(runs, now_s)
    vocabulary = Vocabulary.of(runs)
    looks = past_looks(runs, vocabulary, now_s)
    past = looks.known_at(now_s)
    forecaster = train(past, TABLE_ORDER, looks.names, learner)
    n = len(past.wait_s)
    typical = np.median(past.looks.features, axis=0) if n else np.zeros(len(looks.names))
    since_s = float(past.looks.at_s.min()) if n else now_s
    return ForecastModel(forecaster, vocabulary, typical.astype(float), n, since_s)


def known_runs(runs: Runs, now_s: float) -> Runs:
    """As they were known at `now_s`."""
    here = runs[runs.eligible_s <= now_s]
    columns = {name: getattr(here, name) for name in Runs.__slots__}
    for name in ("start_s", "end_s"):
        columns[name] = np.where(columns[name] <= now_s, columns[name], np.nan)
    return Runs(**columns)
