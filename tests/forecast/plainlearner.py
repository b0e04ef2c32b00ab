"""A small learner instead of scikit-learn, for fast tests."""

import numpy as np

from slurm_gpu.forecast.regression import LinearRegression, Regression, Trees, filled
from slurm_gpu.forecast.wait_grid import bin_of


def plain_learner(past, names, weight):
    """Fit least squares, and one tree with the mean."""
    features = filled(past.samples, names).astype(float)
    wanted = np.log2(past.wait_s)
    mean, spread = features.mean(axis=0), features.std(axis=0) + 1.0
    scaled = (features - mean) / spread
    slopes = np.linalg.solve(
        (scaled * weight[:, None]).T @ scaled + np.eye(len(names)),
        (scaled * weight[:, None]).T @ (wanted - wanted.mean()),
    )
    slopes = slopes / spread
    none, one = np.array([0], dtype=np.int32), np.ones(1, dtype=np.float32)
    bins, ends = bin_of(2.0 ** wanted.mean(keepdims=True)).astype(np.uint8), np.array([0, 1], dtype=np.int32)
    leaf = Trees(none, none - 1, np.zeros(1), none, none, one * wanted.mean(), ends, bins, one)
    return Regression(names, leaf, LinearRegression(slopes, float(wanted.mean() - slopes @ mean)))
