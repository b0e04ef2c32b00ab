"""When a series changed its level: the best single change of many rows, and all changes of one row."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median, quantile

# Bins of a level: what is shorter is noise.
_LEAST_BINS = 3


class Split(NamedTuple):
    """Of each row the change that explains most of it: arrays (n_rows,)."""

    at: NDArray[np.intp]
    """The first column after the change; 0 where there is none to tell."""
    before: Matrix
    after: Matrix
    """Means of both sides."""
    z: Matrix
    """The difference of the means over its standard error; 0 where there is none to tell."""


class LevelSegment(NamedTuple):
    """Columns [start, stop) of one level."""

    start: int
    stop: int
    level: float


def noise(rows: Matrix) -> Matrix:
    """Standard deviation of each row's noise (n_rows,), whatever its levels: by the median of the steps."""
    with np.errstate(invalid="ignore"):
        steps = np.abs(np.diff(rows, axis=1))
    spread: Matrix = median(steps) * MAD_TO_SIGMA / np.sqrt(2.0)
    return spread


def split(rows: Matrix, least: int = 3) -> Split:
    """One change of the mean in each row (CUSUM), at least `least` values on either side; NaN is a gap.

    O(rows × columns). Single wild values are cut to 5 σ of the noise around the row's own quartiles first.
    """
    n_rows, n = rows.shape
    nothing = np.zeros(n_rows)
    if n < 2 * least:
        return Split(np.zeros(n_rows, dtype=np.intp), nothing, nothing, nothing)
    sigma = noise(rows)
    rows = _tamed(rows, sigma)
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
        # Each value told twice (a coarser source) has no steps to tell the noise by.
        z = np.where(np.isfinite(z), z, 0.0)
    return Split(
        np.where(found, best + 1, 0).astype(np.intp),
        np.where(found, before[each, best], 0.0),
        np.where(found, after[each, best], 0.0),
        z,
    )


def segments(row: Matrix, penalty: float = 3.0) -> list[LevelSegment]:
    """Levels of one row, by least squares with a price for each change; [] of gaps alone.

    Pruned search (Killick, Fearnhead and Eckley 2012): O(n) as long as changes come at a steady pace. The
    price is `penalty` · σ² · 2 ln n, σ the noise. Gaps belong to the segment around them.
    """
    columns = np.flatnonzero(np.isfinite(row))
    n = len(columns)
    if n == 0:
        return []
    values = row[columns]
    sigma = noise(values[None, :])[0] if n > 1 else 0.0
    values = _tamed(values[None, :], np.array([sigma]))[0]
    # Rounding alone makes steps: what is constant but for that is one level.
    price = penalty * 2.0 * np.log(max(n, 2)) * max(sigma, 1e-6) ** 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    cost = np.full(n + 1, np.inf)
    cost[0] = -price
    last = np.zeros(n + 1, dtype=np.intp)
    starts = np.array([0], dtype=np.intp)
    for end in range(min(_LEAST_BINS, n), n + 1):
        lengths = end - starts
        spread = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / lengths
        total = cost[starts] + spread
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


def _tamed(rows: Matrix, sigma: Matrix) -> Matrix:
    """Values far outside the middle half of their row, cut to its edge: one spike is no change of level."""
    if rows.shape[1] < 4:
        return rows
    low, high = quantile(rows, 0.1), quantile(rows, 0.9)
    reach = 5.0 * np.where(np.isfinite(sigma), sigma, 0.0)
    return np.clip(rows, (low - reach)[:, None], (high + reach)[:, None])
