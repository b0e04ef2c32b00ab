"""Distributions of waits and their quantiles are correct."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.forecast.wait_grid import (
    EDGES_S,
    N_BINS,
    N_ERROR_BINS,
    around,
    bin_of,
    distribution,
    error_bin_of,
    likeliest,
    quantile,
    share_needed,
    shortest_window,
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


def test_the_shortest_window_has_the_share_and_is_no_longer_than_the_central_one():
    mass = distribution(counts([100.0] * 85 + [2e4] * 15), counts([]))
    lower_s, upper_s = shortest_window(mass, 0.8)
    assert lower_s[0] <= 100 <= upper_s[0]
    assert upper_s[0] / lower_s[0] <= _A_BIN * 1.01
    lower_s, upper_s = shortest_window(mass, 0.9)
    assert lower_s[0] <= 100 < 2e4 <= upper_s[0]


@settings(max_examples=50)
@given(st.lists(st.floats(20, 1e6), min_size=1, max_size=50), st.floats(1, 1e8))
def test_the_window_with_the_needed_share_contains_the_wait(waits_s, wait_s):
    mass = (distribution(counts(waits_s), counts([])) + 1 / N_BINS) / 2
    lower_s, upper_s = shortest_window(mass, share_needed(mass, np.array([wait_s]))[0])
    assert lower_s[0] <= wait_s
    assert wait_s <= upper_s[0] or upper_s[0] >= EDGES_S[-1]


@pytest.mark.parametrize("forecast_s", [3600.0, 1e9, 1.0])
def test_forecasts_with_errors_have_probabilities_that_add_up_to_one(forecast_s):
    errors = np.bincount(error_bin_of(np.array([0.1, 2.1, -30.0, 30.0])), minlength=N_ERROR_BINS) / 4
    mass = around(np.log2([forecast_s]), errors[None, :])
    assert mass.sum() == pytest.approx(1)
