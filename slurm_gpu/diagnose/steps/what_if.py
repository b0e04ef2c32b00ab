"""Compute how long a step of pipeline-parallel training would take with other computing times.

A step of synchronous training takes as long as its slowest replica. A replica takes as long as its busiest
pipeline stage, plus one microbatch in each other stage to fill and drain the pipeline. Only computing time
counts, since waiting for others is a consequence. Arrays `cost` have the shape of StepSeries.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu.diagnose.robust import Matrix, median

# Standard deviation of the usual variation among microbatches of equal content.
LITTLE_CV = 0.045
# Maximum duration of a microbatch with usual variation, relative to the median of its worker.
_USUAL_LONGEST = 1.2


def step_seconds(cost: Matrix) -> float:
    """Return the mean duration of a step, given computing times `cost` in the shape of StepSeries."""
    work = np.nansum(cost, axis=3)
    one = work / np.maximum(np.isfinite(cost).sum(axis=3), 1)
    replica = (work + one.sum(axis=1, keepdims=True) - one).max(axis=1)
    return float(replica.max(axis=0).mean())


def loss(usual: float, cost: Matrix) -> float:
    """Return the share of `usual` seconds by which the computing times `cost` shorten a step."""
    return 1.0 - step_seconds(cost) / usual if usual > 0 else 0.0


def equalizing_factors(stage: Matrix) -> Matrix:
    """Return the factor for each stage that makes its time equal to the mean of all stages."""
    known = stage[np.isfinite(stage)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(stage > 0, known.mean() / stage, 1.0) if known.size else np.ones(len(stage))


def equalized(cost: Matrix, levels: Matrix) -> Matrix:
    """Return the times as they would be if each worker always took its usual time, `levels`."""
    return np.where(np.isfinite(cost), levels[:, :, None, None], np.nan)


def without_variation(cost: Matrix, levels: Matrix) -> Matrix:
    """Return the times as they would be without unusual variation among a worker's microbatches.

    The maximum of many workers exceeds their median even if none is slow. If unusually long operations are
    rare, only these operations are shortened. Otherwise, all times of a worker are set to its usual time.
    """
    usual = levels[:, :, None, None]
    shortened = np.where(usual > 0, np.minimum(cost, _USUAL_LONGEST * usual), cost)
    return shortened if std_of(residuals(shortened)) < LITTLE_CV else equalized(cost, levels)


def residuals(cost: Matrix) -> Matrix:
    """Return the relative excess of each time over the usual time of its worker and stage."""
    usual = median(cost.reshape(cost.shape[0] * cost.shape[1], -1)).reshape(*cost.shape[:2], 1, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(cost / usual - 1.0)


def std_of(excess: Matrix) -> float:
    """Return the standard deviation of the known values; 0 if there are none."""
    known = excess[np.isfinite(excess)]
    return float(known.std()) if known.size else 0.0
