"""Explain a forecast: compute its change if one property of the job had a typical value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu.forecast.forecaster import LEARNED, Forecaster
from slurm_gpu.forecast.samples import Floats, QueueSamples

# The features of each driver, by the driver's name for users: full names, or prefixes that end with _.
FEATURES_OF: Mapping[str, Sequence[str]] = {
    "requested GPUs": ("gpus", "gpu_hours"),
    "requested cores, memory and nodes": ("cores", "mem", "nodes", "core_hours"),
    "time limit": ("limit",),
    "time already waited": ("waited",),
    "hour of the day": ("hour",),
    "the whole queue ahead": ("q_",),
    "queue ahead and running jobs in the partition": ("q_p_", "r_p_"),
    "queue ahead and running jobs of the account": ("q_a_", "r_a_", "q_p_a_", "r_p_a_"),
}
_GROUPINGS = {
    "kind": "use of GPUs",
    "age": "time already waited",
    "partition": "the partition",
    "size": "GPUs and time limit",
    "account and partition": "the account",
}
_MAX_DRIVERS = 4
# Drivers that change the forecast by a smaller factor are omitted.
MIN_FACTOR = 1.15


@dataclass(frozen=True, slots=True)
class Driver:
    """A property of a job, `what`, that multiplies the forecast wait by `factor`."""

    what: str
    factor: float


def drivers(forecaster: Forecaster, sample: QueueSamples, typical: Floats) -> list[Driver]:
    """Return the drivers of the forecast of one job, strongest first.

    `typical` contains the features of a typical job. If the forecast comes from the tables, a driver is a
    group of jobs whose history changed the forecast.
    """
    predicted = forecaster.forecast(sample)
    if predicted.source[0] == LEARNED and forecaster.regression is not None:
        found = _of_features(forecaster, sample, typical)
    else:
        found = _of_tables(forecaster, sample)
    strong = [driver for driver in found if abs(np.log2(driver.factor)) >= np.log2(MIN_FACTOR)]
    return sorted(strong, key=lambda driver: -abs(np.log2(driver.factor)))[:_MAX_DRIVERS]


def _of_features(forecaster: Forecaster, sample: QueueSamples, typical: Floats) -> list[Driver]:
    regression = forecaster.regression
    assert regression is not None
    whole = regression.log2_wait(sample)[0]
    found = []
    for what in FEATURES_OF:
        other = sample.features.copy()
        for column in (i for i, name in enumerate(sample.names) if _driver_of(name) == what):
            other[0, column] = typical[column]
        found.append(
            Driver(what, float(2.0 ** (whole - regression.log2_wait(replace(sample, features=other))[0])))
        )
    return found


def _driver_of(name: str) -> str | None:
    """Return the driver with the longest matching prefix, so that q_p_a_jobs belongs to the account."""
    fits = [
        (len(feature), what)
        for what, features in FEATURES_OF.items()
        for feature in features
        if name == feature or (feature.endswith("_") and name.startswith(feature))
    ]
    return max(fits)[1] if fits else None


def _of_tables(forecaster: Forecaster, sample: QueueSamples) -> list[Driver]:
    tables = forecaster.tables
    steps = [
        replace(tables, order=tables.order[: n + 1]).log2_wait(sample)[0] for n in range(len(tables.order))
    ]
    changes = np.diff(steps)
    return [
        Driver(_GROUPINGS.get(name, name), float(2.0**change))
        for name, change in zip(tables.order[1:], changes, strict=True)
    ]
