"""What a forecast hangs on: how much it would change for a job that is ordinary in one respect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu.forecast.forecaster import LEARNED, Forecaster
from slurm_gpu.forecast.samples import Floats, QueueSamples

# By what people call them, the features: names, or with a final _ how they begin.
RESPECTS: Mapping[str, Sequence[str]] = {
    "GPUs asked for": ("gpus", "gpu_hours"),
    "cores, memory and nodes asked for": ("cores", "mem", "nodes", "core_hours"),
    "time limit": ("limit",),
    "how long it has waited": ("waited",),
    "hour of the day": ("hour",),
    "the whole queue ahead": ("q_",),
    "the partition: queue ahead, what runs": ("q_p_", "r_p_"),
    "the account: its queue ahead, what it runs": ("q_a_", "r_a_", "q_p_a_", "r_p_a_"),
}
_GROUPINGS = {
    "kind": "jobs with as many GPUs or none",
    "age": "how long it has waited",
    "partition": "the partition",
    "size": "its size: GPUs and time limit",
    "account and partition": "the account",
}
_MOST = 4
# What changes the forecast by less goes without saying.
LEAST_FACTOR = 1.15


@dataclass(frozen=True, slots=True)
class Driver:
    """`factor` times as long is the wait forecast because of `what`; less than 1 where it is shorter."""

    what: str
    factor: float


def drivers(forecaster: Forecaster, look: QueueSamples, typical: Floats) -> list[Driver]:
    """What drives the forecast of one job, the strongest first.

    `typical` are the features of an ordinary job: without a learned forecast it is told instead which group's
    history made the tables say more or less than the wider one's.
    """
    said = forecaster.forecast(look)
    if said.source[0] == LEARNED and forecaster.regression is not None:
        found = _of_features(forecaster, look, typical)
    else:
        found = _of_tables(forecaster, look)
    strong = [driver for driver in found if abs(np.log2(driver.factor)) >= np.log2(LEAST_FACTOR)]
    return sorted(strong, key=lambda driver: -abs(np.log2(driver.factor)))[:_MOST]


def _of_features(forecaster: Forecaster, look: QueueSamples, typical: Floats) -> list[Driver]:
    regression = forecaster.regression
    assert regression is not None
    whole = regression.log2_wait(look)[0]
    found = []
    for what in RESPECTS:
        other = look.features.copy()
        for column in (i for i, name in enumerate(look.names) if _respect(name) == what):
            other[0, column] = typical[column]
        found.append(
            Driver(what, float(2.0 ** (whole - regression.log2_wait(replace(look, features=other))[0])))
        )
    return found


def _respect(name: str) -> str | None:
    """The longest beginning wins: q_p_a_jobs is the account's."""
    fits = [
        (len(feature), what)
        for what, features in RESPECTS.items()
        for feature in features
        if name == feature or (feature.endswith("_") and name.startswith(feature))
    ]
    return max(fits)[1] if fits else None


def _of_tables(forecaster: Forecaster, look: QueueSamples) -> list[Driver]:
    tables = forecaster.tables
    steps = [
        replace(tables, order=tables.order[: n + 1]).log2_wait(look)[0] for n in range(len(tables.order))
    ]
    changes = np.diff(steps)
    return [
        Driver(_GROUPINGS.get(name, name), float(2.0**change))
        for name, change in zip(tables.order[1:], changes, strict=True)
    ]
