"""Define the learned forecast with plain arrays: trees and a line that predict log2 of the wait.

`learn` trains both with scikit-learn. Forecasts need only numpy, and reading a stored model executes nothing
from the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.samples import Floats, QueueSamples
from slurm_gpu.forecast.wait_grid import N_BINS

# The value of a missing feature. All other features are logarithms of values of at least 1.
GAP = -9.0


@dataclass(frozen=True, slots=True)
class Trees:
    """Regression trees, concatenated in arrays with one element per node."""

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    """The column to compare; -1 in a leaf."""
    threshold: NDArray[np.float64]
    """Rows with at most this value go to `left`."""
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    """In a leaf, the predicted log2 of the wait in seconds."""
    first: NDArray[np.int32]
    """(nodes + 1): the first index of each leaf in `bins` and `shares`; inner nodes have no entries."""
    bins: NDArray[np.uint8]
    """Bins of `wait_grid`."""
    shares: NDArray[np.float32]
    """The share of the leaf's jobs with a wait in the bin; the shares of a leaf add up to 1."""

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """Return the mean prediction of all trees (n) for rows (n, columns)."""
        total = np.zeros(len(features))
        for node in self._leaves(features):
            total += self.value[node]
        return total / len(self.roots)

    def distribution(self, features: NDArray[np.float32]) -> Floats:
        """Return distributions (n, N_BINS) of the waits of jobs in the same leaves, for rows (n, columns)."""
        mass = np.zeros(len(features) * N_BINS)
        for node in self._leaves(features):
            begin, count = self.first[node], np.diff(self.first)[node]
            row = np.repeat(np.arange(len(features)), count)
            entry = np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)
            mass += np.bincount(row * N_BINS + self.bins[entry], self.shares[entry], len(mass))
        return mass.reshape(len(features), N_BINS) / len(self.roots)

    def _leaves(self, features: NDArray[np.float32]) -> Iterator[NDArray[np.int32]]:
        """Yield the leaves (n) of the rows, one tree after the other."""
        rows = np.arange(len(features))
        for root in self.roots:
            node = np.full(len(features), root, dtype=np.int32)
            while True:
                inner = self.feature[node] >= 0
                if not inner.any():
                    break
                at, row = node[inner], rows[inner]
                low = features[row, self.feature[at]] <= self.threshold[at]
                node[inner] = np.where(low, self.left[at], self.right[at])
            yield node


@dataclass(frozen=True, slots=True)
class LinearRegression:
    """Slopes and intercept of a linear regression."""

    slopes: Floats
    intercept: float

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """Return predictions (n) for rows (n, columns)."""
        return np.asarray(features @ self.slopes + self.intercept)


@dataclass(frozen=True, slots=True)
class Regression:
    """The learned forecast: the mean of the trees and the line, since their errors differ."""

    names: Sequence[str]
    """The feature columns of the regression."""
    trees: Trees
    line: LinearRegression

    def log2_wait(self, samples: QueueSamples) -> Floats:
        """Return (n) log2 of the remaining wait in seconds."""
        features = filled(samples, self.names)
        # The line itself is unbounded; the leaves are means of known waits.
        known = self.trees.value[self.trees.feature < 0]
        line = np.clip(self.line.predict(features), known.min(), known.max())
        return np.asarray((self.trees.predict(features) + line) / 2)

    def distribution(self, samples: QueueSamples) -> Floats:
        """Return (n, N_BINS) distributions of the waits of jobs in the same leaves."""
        return self.trees.distribution(filled(samples, self.names))


def filled(samples: QueueSamples, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the named feature columns (n, len(names)), with GAP for missing values."""
    columns = [samples.names.index(name) for name in names]
    return np.nan_to_num(samples.features[:, columns], nan=GAP).astype(np.float32)
