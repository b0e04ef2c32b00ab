"""Learns from the accounting how long jobs wait, and keeps that for slurm-gpudbd's forecasts."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.database.engine import Database
from slurm_gpu.database.forecasts.runs import past_runs
from slurm_gpu.database.forecasts.store import store_model
from slurm_gpu.forecast.forecaster import LEARNED, TABLES, Correction, Learner
from slurm_gpu.forecast.model import make_model
from slurm_gpu.forecast.modelfile import model_bytes
from slurm_gpu.forecast.queue import HISTORY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What came out."""

    runs: int
    looks: int
    bytes: int
    corrections: dict[str, Correction]
    """By kind of job, `cpu` and `gpu`: which forecast is the better one, and how near both were."""

    @property
    def sources(self) -> set[str]:
        """Which forecasts will be used."""
        return {found.source for found in self.corrections.values()} or {TABLES}

    @property
    def learned(self) -> bool:
        """Whether the learned one is used for any kind of job."""
        return LEARNED in self.sources


def train_from_database(database: Database, cluster: str, now_s: int, learner: Learner | None) -> Trained:
    """Make a model of what is on record at `now_s` and store it; without a learner, of tables alone."""
    with database.reading() as connection:
        runs = past_runs(connection, cluster, now_s - HISTORY_S)
    model = make_model(runs, float(now_s), learner)
    body = model_bytes(model)
    database.write(lambda connection: store_model(connection, cluster, now_s, body))
    return Trained(
        runs=len(runs), looks=model.n_looks, bytes=len(body), corrections=dict(model.forecaster.corrections)
    )


def installed_learner() -> Learner | None:
    """The learner of the extra `learn`; None where scikit-learn is not installed."""
    try:
        from slurm_gpu.forecast.learn import learn
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("sklearn", "scipy", "joblib"):
            raise
        return None
    return learn
