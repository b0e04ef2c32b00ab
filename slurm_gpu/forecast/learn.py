"""Train the trees and the line of a `Regression` with scikit-learn (extra `learn`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor, ExtraTreeRegressor

from slurm_gpu.forecast.regression import LinearRegression, Regression, Trees, filled
from slurm_gpu.forecast.samples import Floats, WaitSamples
from slurm_gpu.forecast.wait_grid import N_BINS, bin_of

_TREES_OF_A_KIND = 30
_SMALLEST_LEAF = 5
_FEATURES_OF_A_SPLIT = 0.33
_PENALTIES = (1.0, 10.0, 100.0, 1000.0, 10000.0)
# For a job that still waits, use twice its wait so far.
_STILL_WAITING_OCTAVES = 1.0
# Each tree is trained on this share of all days. Jobs of one day have similar waits; a tree trained on all
# days would learn differences between days that do not recur.
_DAYS_OF_A_TREE = 0.5
_SEED = 0


def learn(past: WaitSamples, names: Sequence[str], weight: Floats) -> Regression:
    """Return a regression on the feature columns `names`, trained on the known waits."""
    if not past.is_cancelled.all():
        past, weight = past[~past.is_cancelled], weight[~past.is_cancelled]
    features = filled(past.samples, names)
    wanted = np.log2(past.wait_s) + np.where(past.started, 0.0, _STILL_WAITING_OCTAVES)
    return Regression(
        names, _trees(features, wanted, weight, past.samples.at_s // 86400.0), _line(features, wanted, weight)
    )


def _trees(features: NDArray[np.float32], wanted: Floats, weight: Floats, day: Floats) -> Trees:
    days, rng = np.unique(day), np.random.default_rng(_SEED)
    grown, leaves = [], []
    for number in range(2 * _TREES_OF_A_KIND):
        kind = ExtraTreeRegressor if number % 2 else DecisionTreeRegressor
        tree = kind(min_samples_leaf=_SMALLEST_LEAF, max_features=_FEATURES_OF_A_SPLIT, random_state=number)
        seen = np.isin(day, rng.choice(days, max(1, round(len(days) * _DAYS_OF_A_TREE)), replace=False))
        tree.fit(features[seen], wanted[seen], sample_weight=weight[seen])
        grown.append(tree)
        leaves.append(waits_of_leaves(tree.apply(features[seen]), wanted[seen], weight[seen]))
    return trees_of(grown, leaves)


def waits_of_leaves(leaf: NDArray[np.intp], wanted: Floats, weight: Floats) -> Floats:
    """Return (3, entries): leaf, bin, and the share of the leaf's jobs in the bin, sorted."""
    cells, cell = np.unique(leaf * N_BINS + bin_of(2.0**wanted), return_inverse=True)
    share = np.bincount(cell, weight) / np.bincount(leaf, weight)[cells // N_BINS]
    return np.stack([cells // N_BINS, cells % N_BINS, share])


def trees_of(models: Sequence[DecisionTreeRegressor], waits: Sequence[Floats]) -> Trees:
    """Convert fitted trees of scikit-learn to arrays; `waits` contains the waits_of_leaves of each tree."""
    grown = [model.tree_ for model in models]
    starts = np.cumsum([0, *(tree.node_count for tree in grown)])
    leaf = np.concatenate([tree.children_left for tree in grown]) < 0
    offsets = np.repeat(starts[:-1], np.diff(starts))

    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(tree, name).reshape(tree.node_count) for tree in grown])

    entries = np.concatenate(waits, axis=1)
    node = entries[0] + np.repeat(starts[:-1], [part.shape[1] for part in waits])
    return Trees(
        roots=starts[:-1].astype(np.int32),
        feature=np.where(leaf, -1, joined("feature")).astype(np.int32),
        threshold=joined("threshold"),
        left=np.where(leaf, -1, joined("children_left") + offsets).astype(np.int32),
        right=np.where(leaf, -1, joined("children_right") + offsets).astype(np.int32),
        value=joined("value").astype(np.float32),
        first=np.searchsorted(node, np.arange(starts[-1] + 1)).astype(np.int32),
        bins=entries[1].astype(np.uint8),
        shares=entries[2].astype(np.float32),
    )


def _line(features: NDArray[np.float32], wanted: Floats, weight: Floats) -> LinearRegression:
    model = make_pipeline(StandardScaler(), RidgeCV(_PENALTIES))
    model.fit(features, wanted, ridgecv__sample_weight=weight)
    scaler, ridge = model[0], model[1]
    slopes = ridge.coef_ / scaler.scale_
    return LinearRegression(slopes, float(ridge.intercept_ - slopes @ scaler.mean_))
