"""Forecasts for synthetic sites with known waits."""

import dataclasses

import numpy as np
import pytest

from slurm_gpu.forecast.forecaster import MIN_GROUPS
from slurm_gpu.forecast.model import known_runs, make_model
from slurm_gpu.forecast.model_file import model_bytes, read_model
from slurm_gpu.forecast.queue import Runs
from tests.forecast.queues import DAY_S, NOW_S, made_up_runs


@pytest.fixture(scope="module")
def runs():
    return made_up_runs(1200, days=12.0, until_s=NOW_S + 2 * DAY_S)


@pytest.fixture(scope="module")
def model(runs):
    return make_model(runs, NOW_S)


def newcomers(runs):
    """Return the jobs of the next two days, as if all were submitted now."""
    later = runs[runs.eligible_s > NOW_S]
    return later[~np.isnan(later.start_s)]


def test_the_interval_covers_about_80_percent_of_later_jobs(runs, model):
    wanted = newcomers(runs)
    said = model.forecast(known_runs(runs, NOW_S), wanted, NOW_S)
    wait_s = wanted.start_s - wanted.eligible_s
    held = (said.lower_s <= wait_s) & (wait_s <= said.upper_s)
    assert len(wanted) > 100
    assert 0.7 <= held.mean() <= 0.92


def test_jobs_with_gpus_have_a_longer_forecast(runs, model):
    wanted = newcomers(runs)
    said = model.forecast(known_runs(runs, NOW_S), wanted, NOW_S)
    with_gpus, without = np.median(said.median_s[wanted.gpus > 0]), np.median(said.median_s[wanted.gpus == 0])
    # Their median waits are 5 h and 10 min.
    assert 18000 / 2 <= with_gpus <= 18000 * 2
    assert 600 / 2 <= without <= 600 * 2


def test_the_evaluated_accuracy_is_that_of_later_forecasts(runs, model):
    wanted = newcomers(runs)
    said = model.forecast(known_runs(runs, NOW_S), wanted, NOW_S)
    near = np.abs(np.log2(said.median_s / (wanted.start_s - wanted.eligible_s))) <= 1
    for kind, of_kind in (("gpu", wanted.gpus > 0), ("cpu", wanted.gpus == 0)):
        correction = model.forecaster.corrections[kind]
        assert correction.within["tables"][0] == pytest.approx(near[of_kind].mean(), abs=0.2)


def test_the_strongest_driver_is_named(runs, model):
    wanted = newcomers(runs)
    without_gpu = wanted[np.flatnonzero(wanted.gpus == 0)[:1]]
    strongest = model.drivers(known_runs(runs, NOW_S), without_gpu, NOW_S)[0]
    assert strongest.factor < 0.5
    assert strongest.what == "use of GPUs"


def test_too_little_history_gives_no_correction(runs):
    first = runs[:20]
    model = make_model(first, float(first.eligible_s[-1] + 3600))
    assert model.n_samples < MIN_GROUPS
    assert not model.forecaster.corrections
    said = model.forecast(first, first[:1], float(first.eligible_s[-1] + 3600))
    assert said.lower_s[0] < said.median_s[0] < said.upper_s[0]


def test_jobs_of_a_rare_kind_are_corrected_with_all_jobs_but_not_called_validated(runs):
    gpus = np.where(np.arange(len(runs.gpus)) % 60 == 0, 1, 0)
    rare = dataclasses.replace(runs, gpus=gpus)
    found = make_model(rare, NOW_S).forecaster.corrections
    assert found["cpu"].is_validated
    assert 0 < found["gpu"].judged < MIN_GROUPS
    assert not found["gpu"].is_validated
    assert found["gpu"].source == found["cpu"].source


def test_an_unknown_partition_gets_the_forecast_of_all_jobs(runs, model):
    wanted = newcomers(runs)[:1]
    elsewhere = type(wanted)(
        **{
            name: getattr(wanted, name)
            for name in type(wanted).__slots__
            if name not in ("partition", "account")
        },
        partition=np.array(["new"]),
        account=np.array(["new"]),
    )
    said = model.forecast(known_runs(runs, NOW_S), elsewhere, NOW_S)
    assert np.isfinite([said.lower_s[0], said.median_s[0], said.upper_s[0]]).all()


def test_no_history_at_all_is_no_error(runs):
    empty = make_model(runs[:0], NOW_S)
    assert empty.n_samples == 0


def test_a_stored_model_forecasts_the_same(runs, model):
    wanted, queue = newcomers(runs), known_runs(runs, NOW_S)
    again = read_model(model_bytes(model))
    np.testing.assert_allclose(
        again.forecast(queue, wanted, NOW_S).median_s,
        model.forecast(queue, wanted, NOW_S).median_s,
        rtol=1e-3,
    )
    assert again.forecaster.corrections == model.forecaster.corrections


def with_cancelled(runs, share):
    """Return the runs with this share cancelled after a twentieth of their wait."""
    is_cancelled = np.random.default_rng(3).random(len(runs)) < share
    end_s = np.where(is_cancelled, runs.eligible_s + (runs.start_s - runs.eligible_s) / 20, runs.end_s)
    return dataclasses.replace(runs, start_s=np.where(is_cancelled, np.nan, runs.start_s), end_s=end_s)


def test_cancelled_jobs_change_neither_the_accuracy_nor_the_coverage(runs, model):
    started = runs[~np.isnan(runs.start_s)]
    with_many = with_cancelled(started, 0.6)
    found = make_model(with_many, NOW_S)
    for kind in ("cpu", "gpu"):
        of_all = model.forecaster.corrections[kind].within["tables"][0]
        assert found.forecaster.corrections[kind].within["tables"][0] == pytest.approx(of_all, abs=0.06)
    wanted = newcomers(with_many)
    said = found.forecast(known_runs(with_many, NOW_S), wanted, NOW_S)
    wait_s = wanted.start_s - wanted.eligible_s
    assert ((said.lower_s <= wait_s) & (wait_s <= said.upper_s)).mean() >= 0.75


def test_a_burst_of_jobs_does_not_end_the_evaluation(runs):
    burst = made_up_runs(4000, days=0.9, seed=7)
    assert make_model(Runs.joined([runs, burst]), NOW_S).forecaster.corrections
