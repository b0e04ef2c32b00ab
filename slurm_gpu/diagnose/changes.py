"""Find changes of level: the most significant one in each of many rows, or all changes in one row."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median, quantile

# Minimum length of a level, in bins; shorter levels are noise.
_LEAST_BINS = 3


class Split(NamedTuple):
    """For each row, the change that explains the most variance. Each field is an array (n_rows,)."""

    at: NDArray[np.intp]
    """The first column after the change; 0 if there is no change."""
    before: Matrix
    after: Matrix
    """Means before and after the change."""
    z: Matrix
    """The difference between the means divided by its standard error; 0 if there is no change."""


class LevelSegment(NamedTuple):
    """A range [start, stop) of columns in which a row has one level."""

    start: int
    stop: int
    level: float


def noise(rows: Matrix) -> Matrix:
    """Estimate the noise of each row (n_rows,) as a standard deviation.

    The estimate is derived from the median difference between neighbouring values.
    """
    with np.errstate(invalid="ignore"):
        steps = np.abs(np.diff(rows, axis=1))
    sigma: Matrix = median(steps) * MAD_TO_SIGMA / np.sqrt(2.0)
    return sigma


def split(rows: Matrix, least: int = 3) -> Split:
    """Find one change of the mean in each row (CUSUM), at least `least` values from either end.

    NaN marks values that were not measured. The running time is O(rows × columns). Values that are below the
    row's 10 % quantile or above its 90 % quantile by more than 5 σ of the noise are clipped first.
    """
    n_rows, n = rows.shape
    nothing = np.zeros(n_rows)
    if n < 2 * least:
        return Split(np.zeros(n_rows, dtype=np.intp), nothing, nothing, nothing)
    sigma = noise(rows)
    rows = _clipped(rows, sigma)
    good = np.isfinite(rows)
    counts = np.cumsum(good, axis=1)[:, :-1].astype(np.float64)
    sums = np.cumsum(np.where(good, rows, 0.0), axis=1)
    total, number = sums[:, -1:], good.sum(axis=1, keepdims=True).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        before, after = sums[:, :-1] / counts, (total - sums[:, :-1]) / (number - counts)
        gain = counts * (number - counts) / number * (after - before) ** 2
        gain[~((counts >= least) & (number - counts >= least))] = -1.0
        gain[~np.isfinite(gain)] = -1.0
        best = np.argmax(gain, axis=1)
        each = np.arange(n_rows)
        found = gain[each, best] > 0
        scale = np.maximum(sigma, 1e-9)
        z = np.where(found, np.sqrt(np.maximum(gain[each, best], 0.0)) / scale, 0.0)
        # If a coarser source repeats values, neighbouring values do not differ, and the noise cannot be
        # estimated.
        z = np.where(np.isfinite(z), z, 0.0)
    return Split(
        np.where(found, best + 1, 0).astype(np.intp),
        np.where(found, before[each, best], 0.0),
        np.where(found, after[each, best], 0.0),
        z,
    )


def segments(row: Matrix, penalty: float = 3.0) -> list[LevelSegment]:
    """Find the levels of one row by least squares with a penalty for each change; [] if the row is empty.

    The search is pruned (Killick, Fearnhead and Eckley 2012), so it takes O(n) time if changes occur
    regularly. The penalty of a change is `penalty` · σ² · 2 ln n, where σ is the noise. Missing values belong
    to the segment that surrounds them.
    """
    columns = np.flatnonzero(np.isfinite(row))
    n = len(columns)
    if n == 0:
        return []
    values = row[columns]
    sigma = noise(values[None, :])[0] if n > 1 else 0.0
    values = _clipped(values[None, :], np.array([sigma]))[0]
    # The minimum of σ covers rounding: a row that is constant except for rounding has one level.
    price = penalty * 2.0 * np.log(max(n, 2)) * max(sigma, 1e-6) ** 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    cost = np.full(n + 1, np.inf)
    cost[0] = -price
    last = np.zeros(n + 1, dtype=np.intp)
    starts = np.array([0], dtype=np.intp)
    for end in range(min(_LEAST_BINS, n), n + 1):
        lengths = end - starts
        squared_deviations = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / lengths
        total = cost[starts] + squared_deviations
        best = int(np.argmin(total))
        cost[end], last[end] = total[best] + price, starts[best]
        starts = starts[total <= cost[end]]
        if end - _LEAST_BINS + 1 >= _LEAST_BINS:
            starts = np.append(starts, end - _LEAST_BINS + 1)
    cuts = [n]
    while cuts[-1] > 0:
        cuts.append(int(last[cuts[-1]]))
    cuts.reverse()
    found = []
    for start, stop in pairwise(cuts):
        level = float((sums[stop] - sums[start]) / (stop - start))
        left = 0 if start == 0 else int(columns[start])
        right = len(row) if stop == n else int(columns[stop])
        found.append(LevelSegment(left, right, level))
    return found


def _clipped(rows: Matrix, sigma: Matrix) -> Matrix:
    """Clip values far outside the usual range of their row, since a single spike is not a change of level."""
    if rows.shape[1] < 4:
        return rows
    low, high = quantile(rows, 0.1), quantile(rows, 0.9)
    reach = 5.0 * np.where(np.isfinite(sigma), sigma, 0.0)
    return np.clip(rows, (low - reach)[:, None], (high + reach)[:, None])
