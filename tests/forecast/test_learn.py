"""The regression as arrays gives the results of scikit-learn's models."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu.forecast.forecaster import LEARNED, TABLES
from slurm_gpu.forecast.model import known_runs, make_model
from slurm_gpu.forecast.model_file import model_bytes, read_model
from slurm_gpu.forecast.queue import Vocabulary, past_samples
from slurm_gpu.forecast.regression import filled
from slurm_gpu.forecast.samples import KINDS
from slurm_gpu.forecast.wait_grid import N_BINS, bin_of
from tests.forecast.queues import DAY_S, NOW_S, made_up_runs

sklearn_tree = pytest.importorskip("sklearn.tree", reason="needs the extra learn")


def test_trees_as_arrays_predict_the_same():
    from slurm_gpu.forecast import learn

    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 6)).astype(np.float32)
    wanted = 10 + features[:, 0] * 2 + (features[:, 1] > 0) + rng.normal(size=400) * 0.1
    models = [
        sklearn_tree.ExtraTreeRegressor(min_samples_leaf=5, random_state=seed).fit(features, wanted)
        for seed in range(5)
    ]
    said = np.mean([model.predict(features) for model in models], axis=0)
    held = [learn.waits_of_leaves(model.apply(features), wanted, np.ones(400)) for model in models]
    trees = learn.trees_of(models, held)
    np.testing.assert_allclose(trees.predict(features), said, atol=1e-5)

    # Compute the result for one row by hand, from the rows in its leaf in each tree.
    mass = trees.distribution(features)
    by_hand = np.mean(
        [
            np.bincount(bin_of(2.0 ** wanted[alike]), minlength=N_BINS) / alike.sum()
            for alike in (model.apply(features) == model.apply(features)[7] for model in models)
        ],
        axis=0,
    )
    np.testing.assert_allclose(mass[7], by_hand, atol=1e-6)
    np.testing.assert_allclose(mass.sum(axis=1), 1, atol=1e-5)


def test_a_learned_model_is_accurate_and_can_be_stored():
    from slurm_gpu.forecast.learn import learn

    runs = made_up_runs()
    samples = past_samples(runs, Vocabulary.of(runs), NOW_S)
    past = samples.known_at(NOW_S)
    regression = learn(past, samples.names, np.ones(len(past.wait_s)))
    assert filled(past.samples, samples.names).shape == (len(past.wait_s), len(samples.names))
    off = np.abs(regression.log2_wait(past.samples) - np.log2(past.wait_s))[past.started]
    assert np.median(off) < 1

    model = make_model(runs, NOW_S, learn)
    sources = {name for found in model.forecaster.corrections.values() for name in found.within}
    assert LEARNED in sources
    assert read_model(model_bytes(model)).forecaster.corrections == model.forecaster.corrections


def test_a_request_beyond_all_known_ones_is_not_forecast_beyond_known_waits():
    from slurm_gpu.forecast.learn import learn

    runs = made_up_runs()
    samples = past_samples(runs, Vocabulary.of(runs), NOW_S)
    past = samples.known_at(NOW_S)
    regression = learn(past, samples.names, np.ones(len(past.wait_s)))
    for factor in (100.0, -100.0):
        said = regression.log2_wait(replace(past.samples, features=past.samples.features * factor))
        # A job that is still waiting counts with twice its wait.
        assert np.all((said >= 0) & (said <= np.log2(past.wait_s).max() + 1))


def test_with_a_short_history_the_regression_forecasts_without_a_correction():
    from slurm_gpu.forecast.learn import learn

    first_day = NOW_S - 13 * DAY_S
    runs = made_up_runs(1200, days=14.0)
    model = make_model(runs, first_day, learn)
    assert model.forecaster.corrections == {}, "one day is too short for an evaluation"
    queue = known_runs(runs, first_day)
    wanted = runs[(runs.eligible_s > first_day) & (runs.eligible_s < first_day + DAY_S)]
    said = model.forecast(queue, wanted, first_day)
    assert set(said.source) == {LEARNED}
    assert (said.lower_s <= said.median_s).all()
    assert (said.median_s <= said.upper_s).all()
    stored = read_model(model_bytes(model))
    assert stored.read_error == ""
    np.testing.assert_allclose(stored.forecast(queue, wanted, first_day).median_s, said.median_s, rtol=1e-3)

    few = make_model(runs[:20], float(runs.eligible_s[19] + 3600), learn)
    assert {few.forecaster.source_of(kind) for kind in KINDS} == {TABLES}


def test_jobs_that_were_cancelled_early_do_not_shorten_the_forecasts():
    from slurm_gpu.forecast.learn import learn

    runs = made_up_runs(800, days=2.0, seed=1, until_s=NOW_S + DAY_S)
    is_cancelled = np.arange(len(runs)) % 2 == 0
    end_s = np.where(is_cancelled, runs.eligible_s + 30, runs.end_s)
    runs = replace(runs, start_s=np.where(is_cancelled, np.nan, runs.start_s), end_s=end_s)
    wanted = runs[(runs.eligible_s > NOW_S) & ~np.isnan(runs.start_s)]
    model = make_model(runs, NOW_S, learn)
    assert model.forecaster.source_of("gpu") == LEARNED
    said = model.forecast(known_runs(runs, NOW_S), wanted, NOW_S)
    assert np.median(said.median_s / (wanted.start_s - wanted.eligible_s)) == pytest.approx(1, abs=0.4)

    all_cancelled = replace(runs, start_s=np.full(len(runs), np.nan), end_s=runs.eligible_s + 30)
    said = make_model(all_cancelled, NOW_S, learn).forecast(runs[:0], wanted, NOW_S)
    assert np.isfinite(said.upper_s).all()
