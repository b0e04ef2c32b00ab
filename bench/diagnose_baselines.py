"""Implement two published methods, for comparison with slurm-gpu on the same streams.

Both methods return only the faulty worker, without a cause. To favour the methods, their thresholds are those
with the best F1 on development seeds (bench/diagnose.py --seed 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import Series

Floats = NDArray[np.float64]
MAX_DEVIATION = 0.08
MINDER_Z, MINDER_CONTINUITY_S = 2.0, 120.0
STRICT_Z, STRICT_CONTINUITY_S = 5.0, 240.0
"""Settings with the published four minutes, and a threshold with few false alarms."""
MINDER_S = 30.0
_PRIORITY = (
    # The available metrics among those that Minder's authors found most important, in their order.
    Metric.PCIE,
    Metric.CPU,
    Metric.UTIL,
    Metric.POWER,
    Metric.SM_ACTIVE,
    Metric.SM_CLOCK,
    Metric.TENSOR,
    Metric.NVLINK,
)
_DEVIATING = (
    Metric.UTIL,
    Metric.SM_ACTIVE,
    Metric.TENSOR,
    Metric.POWER,
    Metric.SM_CLOCK,
    Metric.PCIE,
    Metric.NVLINK,
)


def max_deviation(series: Series, threshold: float = MAX_DEVIATION) -> int | None:
    """Return the worker with the largest deviation of a mean metric, relative to the mean of all workers."""
    worst, found = threshold, None
    for metric in _DEVIATING:
        matrix = series.get(metric)
        if matrix is None or matrix.shape[1] == 0:
            continue
        means = _means(matrix)
        whole = _mean(means)
        if not whole > 0:
            continue
        apart = np.abs(means / whole - 1)
        if np.isfinite(apart).any() and (most := float(np.nanmax(apart))) > worst:
            worst, found = most, int(np.nanargmax(apart))
    return found


def minder_like(
    series: Series, threshold: float = MINDER_Z, continuity_s: float = MINDER_CONTINUITY_S
) -> int | None:
    """Apply Deng et al., "Minder" (NSDI'25), with means over 30 s instead of its autoencoder.

    For each metric in Minder's order, find in each stretch the worker with the largest sum of distances to
    all others, by z-score. A worker that is found for `continuity_s` without a break is faulty.
    """
    width = max(1, round(MINDER_S / series.width_s))
    needed = max(2, round(continuity_s / (width * series.width_s)))
    n = series.n_bins // width
    if n < needed or len(series.workers) < 3:
        return None
    for metric in _PRIORITY:
        matrix = series.get(metric)
        if matrix is None:
            continue
        parts = matrix[:, -n * width :].reshape(len(matrix), n, width)
        stretches = np.stack([_means(parts[:, k]) for k in range(n)], axis=1)
        if (found := _continued(stretches, needed, threshold)) is not None:
            return found
    return None


def minder_strict(series: Series) -> int | None:
    """Apply `minder_like` with a threshold that causes fewer alarms."""
    return minder_like(series, STRICT_Z, STRICT_CONTINUITY_S)


def _continued(stretches: Floats, needed: int, threshold: float) -> int | None:
    last, run = None, 0
    for column in stretches.T:
        known = np.isfinite(column)
        if known.sum() < 3:
            last, run = None, 0
            continue
        distance = np.abs(column[:, None] - column[None, known]).sum(axis=1)
        deviation = float(distance[known].std())
        if deviation <= 1e-9:
            last, run = None, 0
            continue
        z = np.where(known, (distance - distance[known].mean()) / deviation, -np.inf)
        who = int(z.argmax())
        if z[who] < threshold:
            last, run = None, 0
            continue
        run = run + 1 if who == last else 1
        last = who
        if run >= needed:
            return who
    return None


def _means(matrix: Floats) -> Floats:
    """Return the mean of each row without gaps, NaN for rows of gaps only."""
    known = np.isfinite(matrix)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, matrix, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
