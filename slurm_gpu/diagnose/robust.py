"""Compute medians and robust standard deviations of matrices with missing values (NaN)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Factor from the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826


def quantile(rows: Matrix, q: float) -> Matrix:
    """Return a quantile of each row (n_rows,) ignoring NaN; NaN if the row has no value.

    In contrast, numpy.nanquantile warns about rows without a value, and is slow if there are NaN.
    """
    if rows.shape[1] == 0:
        return np.full(len(rows), np.nan)
    ordered = np.sort(rows, axis=1)  # NaN is last
    counts = np.isfinite(ordered).sum(axis=1)
    place = q * np.maximum(counts - 1, 0)
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, np.maximum(counts - 1, 0))
    each, part = np.arange(len(rows)), place - low
    found: Matrix = np.where(counts > 0, ordered[each, low] * (1 - part) + ordered[each, high] * part, np.nan)
    return found


def mean(rows: Matrix) -> Matrix:
    """Return the mean of each row (n_rows,) ignoring NaN; NaN if the row has no value."""
    good = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        found: Matrix = np.where(good, rows, 0.0).sum(axis=1) / good.sum(axis=1)
    return found


def median(rows: Matrix) -> Matrix:
    """Return the median of each row (n_rows,) ignoring NaN; NaN if the row has no value."""
    return quantile(rows, 0.5)


def middle(values: Matrix) -> float:
    """Return the median of one row; NaN if the row has no value."""
    return float(quantile(values[None, :], 0.5)[0])


def sigma(values: Matrix) -> float:
    """Return the robust standard deviation of one row (1.4826 × MAD); NaN if the row has no value."""
    return MAD_TO_SIGMA * middle(np.abs(values - middle(values)))


def smooth(rows: Matrix, n: int, least: float = 0.0) -> Matrix:
    """Return the mean of every `n` consecutive columns, (n_rows, n_columns // n), ignoring NaN.

    A mean of fewer than `least` · `n` values is NaN.
    """
    if n <= 1:
        return rows
    n_means = rows.shape[1] // n
    whole = rows[:, : n_means * n].reshape(len(rows), n_means, n)
    counts = np.isfinite(whole).sum(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Matrix = np.where(np.isfinite(whole), whole, 0.0).sum(axis=2) / counts
    return np.where(counts >= max(1.0, least * n), means, np.nan)
