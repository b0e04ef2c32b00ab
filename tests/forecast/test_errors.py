"""Recent errors of forecasts correct later ones, by kind of job and partition."""

import numpy as np
import pytest

from slurm_gpu.forecast.errors import ERROR_ORDER, error_tables
from slurm_gpu.forecast.forecaster import train
from slurm_gpu.forecast.samples import KIND, QueueSamples
from slurm_gpu.forecast.wait_grid import quantile

_DAY_S = 86400.0


def samples(partition, at_s=None, wait_s=None):
    """Return samples of jobs with GPUs, each unlike any other."""
    n = len(partition)
    at_s = np.zeros(n) if at_s is None else at_s
    return QueueSamples(
        at_s=at_s,
        start_s=np.full(n, np.nan) if wait_s is None else at_s + wait_s,
        gone_s=np.full(n, np.nan),
        features=np.zeros((n, 1), dtype=np.float32),
        names=("gpus",),
        groups={
            "all": np.zeros(n, dtype=int),
            KIND: np.ones(n, dtype=int),
            "partition": np.array(partition, dtype=int),
        },
        alike=np.arange(n),
    )


def median_s(errors, forecast_s, partition):
    mass = errors.around(np.log2([forecast_s]), samples([partition]))
    assert mass.sum() == pytest.approx(1)
    return quantile(mass, 0.5)[0]


def test_forecasts_that_were_too_short_are_corrected():
    errors = error_tables(np.full(500, 2.0), np.ones(500), samples([0] * 500))
    assert median_s(errors, 3600.0, 0) == pytest.approx(4 * 3600, rel=0.2)


def test_a_partition_is_corrected_by_its_own_errors():
    octaves = np.repeat([0.0, 3.0], 500)
    errors = error_tables(octaves, np.ones(1000), samples([0] * 500 + [1] * 500))
    assert median_s(errors, 3600.0, 0) < 2 * 3600 < 4 * 3600 < median_s(errors, 3600.0, 1)


def test_errors_are_weighted():
    octaves, weight = np.repeat([0.0, 3.0], 500), np.repeat([3.0, 1.0], 500)
    errors = error_tables(octaves, weight, samples([0] * 1000))
    mass = errors.around(np.log2([3600.0]), samples([0]))
    assert quantile(mass, 0.65)[0] < 2 * 3600 < 4 * 3600 < quantile(mass, 0.85)[0]


def test_unknown_partitions_and_no_errors_give_a_distribution():
    errors = error_tables(np.full(500, 2.0), np.ones(500), samples([0] * 500))
    assert median_s(errors, 3600.0, 7) == pytest.approx(4 * 3600, rel=0.2)
    assert median_s(errors, 3600.0, -1) == pytest.approx(4 * 3600, rel=0.2)
    median_s(error_tables(np.zeros(0), np.zeros(0), samples([])), 3600.0, 0)
    assert set(errors.counts) == set(ERROR_ORDER)


@pytest.mark.parametrize("seed", [11, 12])
def test_after_a_change_the_forecast_follows_within_days(seed):
    """Waits are 20 minutes for 20 days, then 16 times as long for three days."""
    rng, now_s = np.random.default_rng(seed), 23 * _DAY_S
    at_s = np.sort(rng.uniform(0, now_s - _DAY_S / 4, 2000))
    wait_s = rng.lognormal(np.log(np.where(at_s > 20 * _DAY_S, 16, 1) * 1200.0), 0.4)
    past = samples([0] * 2000, at_s, wait_s).known_at(now_s)
    said = train(past, ("all", KIND, "partition"), ("gpus",)).forecast(samples([0], np.array([now_s])))
    assert 16 * 1200 / 2 <= said.median_s[0] <= 16 * 1200 * 2
