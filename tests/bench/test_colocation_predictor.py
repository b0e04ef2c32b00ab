"""The test pairs of bench/colocation_predictor.py are in no training data."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from bench.colocation_predictor import (
    BOUNDED,
    CONFIDENCES,
    FOLDS,
    METHODS,
    NAME,
    Floats,
    covered,
    error,
    features,
    folds,
)
from slurm_gpu.colocation.profiles.traits import Traits

TRAITS = [Traits(family, size, (float(size),)) for family in "abcde" for size in (8, 16, 32)]
N = len(TRAITS)


def table() -> Floats:
    speeds = np.random.default_rng(0).uniform(0.3, 1.0, (N, N))
    speeds[3, 4] = speeds[4, 3] = 0.0
    return speeds


@pytest.mark.parametrize("kind", ["pairs", "applications", "families", "met 2"])
def test_test_pairs_are_in_no_training_data(kind: str) -> None:
    speeds = table()
    times = np.zeros((N, N))
    for seen, asked in folds(kind, TRAITS, speeds, seed=1):
        assert np.isnan(seen[asked]).all()
        assert (asked == asked.T).all()
        assert not asked[3, 4]
        times += asked
    assert times[speeds > 0].min() >= (0 if kind == "met 2" else 1)
    if kind == "pairs":
        assert (times[speeds > 0] == 1).all()


@pytest.mark.parametrize(("kind", "left_out"), [("applications", 3), ("families", 3)])
def test_applications_and_families_are_left_out_wholly(kind: str, left_out: int) -> None:
    for seen, _ in folds(kind, TRAITS, table(), seed=2):
        gone = np.isnan(seen).all(axis=1)
        assert gone.sum() == left_out
        assert np.isnan(seen[:, gone]).all()
        if kind == "families":
            assert len({one.family for one, out in zip(TRAITS, gone, strict=True) if out}) == 1


def test_a_fold_without_families_is_left_out() -> None:
    two = [Traits(one.family if one.family == "a" else "b", one.size, one.uses) for one in TRAITS]
    found = list(folds("families", two, table(), seed=2))
    assert len(found) == 2
    assert all(asked.any() for _, asked in found)


def test_whom_it_met_is_known_of_each_application() -> None:
    plain = list(folds("applications", TRAITS, table(), seed=2))
    for (seen, _), (nothing, _) in zip(folds("met 2", TRAITS, table(), seed=2), plain, strict=True):
        gone = np.isnan(nothing).all(axis=1)
        assert gone.sum() == N / FOLDS
        assert ((~np.isnan(seen[gone])).sum(axis=1) >= 2).all()


def test_a_pairs_features_do_not_change_with_the_pair_itself() -> None:
    speeds, other = table(), table()
    other[1, 7], other[7, 1] = 0.123, 0.321
    before, after = features(TRAITS, speeds), features(TRAITS, other)
    for at in (1 * N + 7, 7 * N + 1):
        assert before[at] == pytest.approx(after[at], nan_ok=True)
    assert not np.array_equal(before, after, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in METHODS if "boosting" not in name and "trees" not in name])
def test_every_method_predicts_every_pair(name: str) -> None:
    rng = np.random.default_rng(3)
    suffers, does = rng.uniform(0.6, 1, N), rng.uniform(0.6, 1, N)
    speeds = suffers[:, None] * does
    seen, asked = next(folds("pairs", TRAITS, speeds, seed=3))
    found = METHODS[name](TRAITS, seen)
    assert found.shape == (N, N)
    assert np.isfinite(found[asked]).all()
    if name in (NAME, "truncated SVD"):
        assert error(found, speeds, asked) < 0.03


@pytest.mark.parametrize("name", [name for name in METHODS if "boosting" in name])
def test_boosting_does_without_sizes_and_speeds_alone(name: str) -> None:
    plain = [Traits(one.family) for one in TRAITS]
    seen, asked = next(folds("pairs", plain, table(), seed=3))
    assert np.isfinite(METHODS[name](plain, seen)[asked]).all()


def test_a_bounded_fit_that_chooses_is_better_than_one_by_order() -> None:
    rng = np.random.default_rng(5)
    speeds = rng.uniform(0.4, 1, N)[:, None] * rng.uniform(0.6, 1, N)
    seen, asked = next(folds("pairs", TRAITS, speeds, seed=3))
    errors = {name: error(method(40, TRAITS, seen), speeds, asked) for name, method in BOUNDED.items()}
    assert errors["chosen"] < errors["by order"]


def test_the_coverage_of_lower_bounds_is_reported_per_fold_and_confidence() -> None:
    rng = np.random.default_rng(4)
    speeds = np.clip(rng.uniform(0.6, 0.9, N)[:, None] + rng.normal(0, 0.05, (N, N)), 0.1, 1)
    report = covered("pairs", TRAITS, speeds, seeds=2)
    assert list(report) == [str(confidence) for confidence in CONFIDENCES]
    for confidence, coverage in zip(CONFIDENCES, report.values(), strict=True):
        assert coverage["mean"] == pytest.approx(confidence, abs=0.1)
        assert isinstance(coverage["folds"], list)
        assert len(coverage["folds"]) == FOLDS
