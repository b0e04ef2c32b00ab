"""Grows the trees and fits the line of a `Regression`; takes scikit-learn (extra `learn`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from slurm_gpu.forecast.looks import Floats, Known
from slurm_gpu.forecast.regression import Line, Regression, Trees, filled

_TREES_OF_A_KIND = 30
_SMALLEST_LEAF = 5
_FEATURES_OF_A_SPLIT = 0.33
_PENALTIES = (1.0, 10.0, 100.0, 1000.0, 10000.0)
_STILL_WAITING_OCTAVES = 1.0
"""Who still waits is taken to wait as long again as it has."""
_SEED = 0


def learn(past: Known, names: Sequence[str], weight: Floats) -> Regression:
    """A regression on the columns `names` of the looks' features, as far as their fate is known."""
    features = filled(past.looks, names)
    wanted = np.log2(past.wait_s) + np.where(past.started, 0.0, _STILL_WAITING_OCTAVES)
    return Regression(names, _trees(features, wanted, weight), _line(features, wanted, weight))


def _trees(features: NDArray[np.float32], wanted: Floats, weight: Floats) -> Trees:
    grown = []
    for kind in (RandomForestRegressor, ExtraTreesRegressor):
        forest = kind(
            _TREES_OF_A_KIND,
            min_samples_leaf=_SMALLEST_LEAF,
            max_features=_FEATURES_OF_A_SPLIT,
            random_state=_SEED,
        )
        forest.fit(features, wanted, sample_weight=weight)
        grown += [estimator.tree_ for estimator in forest.estimators_]
    starts = np.cumsum([0, *(tree.node_count for tree in grown)])
    leaf = np.concatenate([tree.children_left for tree in grown]) < 0
    offsets = np.repeat(starts[:-1], np.diff(starts))

    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(tree, name).reshape(tree.node_count) for tree in grown])

    return Trees(
        roots=starts[:-1].astype(np.int32),
        feature=np.where(leaf, -1, joined("feature")).astype(np.int32),
        threshold=joined("threshold"),
        left=np.where(leaf, -1, joined("children_left") + offsets).astype(np.int32),
        right=np.where(leaf, -1, joined("children_right") + offsets).astype(np.int32),
        value=joined("value").astype(np.float32),
    )


def _line(features: NDArray[np.float32], wanted: Floats, weight: Floats) -> Line:
    model = make_pipeline(StandardScaler(), RidgeCV(_PENALTIES))
    model.fit(features, wanted, ridgecv__sample_weight=weight)
    scaler, ridge = model[0], model[1]
    slopes = ridge.coef_ / scaler.scale_
    return Line(slopes, float(ridge.intercept_ - slopes @ scaler.mean_))
