"""A learned forecast as plain arrays: trees and a straight line, each of which tells log2 of the wait.

They are grown elsewhere (`learn`) and used here, so that a forecast takes numpy alone, and a stored model is
read without running anything that a file may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.samples import Floats, QueueSamples
from slurm_gpu.forecast.wait_grid import N_BINS

# Stands for a missing feature: all others are logarithms of what is 1 or more.
GAP = -9.0
# log2 of the seconds within which a forecast stays, however far the line would lead: 16 s to 97 days.
_SHORTEST, _LONGEST = 4.0, 23.0


@dataclass(frozen=True, slots=True)
class Trees:
    """Regression trees, one after the other in arrays of one element for each node."""

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    """Which column decides; -1 in a leaf."""
    threshold: NDArray[np.float64]
    """Rows that are not above it go to `left`."""
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    """Of a leaf: log2 of the wait in seconds."""
    first: NDArray[np.int32]
    """(nodes + 1): where in `bins` and `shares` the jobs of each leaf begin; inner nodes have none."""
    bins: NDArray[np.uint8]
    """Of the grid in `waitgrid`."""
    shares: NDArray[np.float32]
    """Of a leaf's jobs, those whose wait lay in the bin; 1 for each leaf together."""

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """(n) the mean of all trees for (n, columns)."""
        total = np.zeros(len(features))
        for node in self._leaves(features):
            total += self.value[node]
        return total / len(self.roots)

    def distribution(self, features: NDArray[np.float32]) -> Floats:
        """(n, N_BINS) how long those waited who fell into the same leaves, for (n, columns)."""
        mass = np.zeros(len(features) * N_BINS)
        for node in self._leaves(features):
            begin, count = self.first[node], np.diff(self.first)[node]
            row = np.repeat(np.arange(len(features)), count)
            entry = np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)
            mass += np.bincount(row * N_BINS + self.bins[entry], self.shares[entry], len(mass))
        return mass.reshape(len(features), N_BINS) / len(self.roots)

    def _leaves(self, features: NDArray[np.float32]) -> Iterator[NDArray[np.int32]]:
        """Of each tree, (n) the leaf into which each row falls."""
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
    """A linear regression."""

    slopes: Floats
    intercept: float

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """(n) for (n, columns)."""
        return np.asarray(features @ self.slopes + self.intercept)


@dataclass(frozen=True, slots=True)
class Regression:
    """The learned forecast. Trees and line err in different ways, so its middle is halfway between them."""

    names: Sequence[str]
    """The columns of the features that it knows."""
    trees: Trees
    line: LinearRegression

    def log2_wait(self, looks: QueueSamples) -> Floats:
        """(n) log2 of the seconds to wait, in the middle."""
        features = filled(looks, self.names)
        both = (self.trees.predict(features) + self.line.predict(features)) / 2
        return np.clip(both, _SHORTEST, _LONGEST)

    def distribution(self, looks: QueueSamples) -> Floats:
        """(n, N_BINS): how long jobs waited that the trees take for alike."""
        return self.trees.distribution(filled(looks, self.names))


def filled(looks: QueueSamples, names: Sequence[str]) -> NDArray[np.float32]:
    """(n, len(names)) the named columns of the features, without gaps."""
    columns = [looks.names.index(name) for name in names]
    return np.nan_to_num(looks.features[:, columns], nan=GAP).astype(np.float32)
