"""Distributions of waits and their quantiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.forecast.wait_grid import (
    EDGES_S,
    N_BINS,
    around,
    bin_of,
    distribution,
    error_distribution,
    likeliest,
    quantile,
)

_A_BIN = EDGES_S[1] / EDGES_S[0]


def counts(waits_s) -> np.ndarray:
    return np.bincount(bin_of(np.asarray(waits_s, dtype=float)), minlength=N_BINS)[None, :].astype(float)


@settings(max_examples=25)
@given(st.lists(st.floats(20, 1e6), min_size=1, max_size=50), st.lists(st.floats(20, 1e6), max_size=50))
def test_probabilities_add_up_to_one_with_waiting_jobs(started, waiting):
    mass = distribution(counts(started), counts(waiting))
    assert mass.min() >= 0
    assert mass.sum() == pytest.approx(1)


@settings(max_examples=25)
@given(st.floats(20, 1e6))
def test_the_median_of_one_wait_is_that_wait_within_a_bin(wait_s):
    median = quantile(distribution(counts([wait_s]), counts([])), 0.5)[0]
    assert wait_s / _A_BIN <= median <= wait_s * _A_BIN


def test_waiting_jobs_make_the_forecast_longer():
    ended = [600.0] * 50 + [6000.0] * 50
    alone = quantile(distribution(counts(ended), counts([])), 0.4)[0]
    with_others = quantile(distribution(counts(ended), counts([3000.0] * 100)), 0.4)[0]
    assert with_others > alone * 5


def test_kaplan_and_meier_by_hand():
    # 10 start after a minute, 10 waited for at least an hour, and 10 start after a day.
    mass = distribution(counts([60.0] * 10 + [86400.0] * 10), counts([3600.0] * 10))
    assert mass[0, bin_of(np.array([60.0]))].sum() == pytest.approx(1 / 3)
    assert mass[0, bin_of(np.array([86400.0]))].sum() == pytest.approx(2 / 3)


def test_the_likeliest_wait_is_in_a_peak_and_the_median_between():
    mass = distribution(counts([100.0] * 45 + [2e4] * 55), counts([]))
    assert 1e4 <= likeliest(mass)[0] <= 4e4
    mass = distribution(counts([100.0] * 55 + [2e4] * 45), counts([]))
    assert 50 <= likeliest(mass)[0] <= 200


def test_forecasts_that_were_too_short_are_corrected():
    # Half of the forecasts were right, half were a quarter of the wait.
    spread = error_distribution(np.array([0.0] * 50 + [2.0] * 50), np.ones(100))
    mass = around(np.log2([3600.0, 1e9, 1.0]), spread)
    assert mass.sum(axis=1) == pytest.approx(1)
    assert quantile(mass, 0.25)[0] == pytest.approx(3600, rel=0.2)
    assert quantile(mass, 0.75)[0] == pytest.approx(4 * 3600, rel=0.2)


def test_errors_are_weighted():
    spread = error_distribution(np.array([0.0, 2.0]), np.array([3.0, 1.0]))
    mass = around(np.log2([3600.0]), spread)
    assert quantile(mass, 0.74)[0] < 2 * 3600 < quantile(mass, 0.76)[0]
