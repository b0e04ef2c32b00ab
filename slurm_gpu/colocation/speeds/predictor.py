"""Predict the speeds of two applications that have never shared a GPU, and their uncertainty."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_gpu.colocation.profiles.traits import Floats, Traits, likeness
from slurm_gpu.colocation.speeds.gaussian_process import (
    SLOWEST,
    USUAL_VARIANCE,
    Entries,
    GaussianProcess,
    Scales,
    fitted,
)
from slurm_gpu.colocation.speeds.low_rank import Completion, complete

log = logging.getLogger(__name__)

_NOTHING_KNOWN = 0.7
# Maximum number of fitted speeds; the cost of a fit is cubic in this number: 1,000 speeds of 52 applications
# take 2 s of processor time.
MOST_FITTED = 1000
# Minimum number of folds that select the weight; each requires another fit.
_SELECTING = 2
# Candidate weights of the completion in its mean with the Gaussian process.
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
# More measurements of one pair do not reduce the uncertainty further, because the remaining error is
# systematic.
_MOST_COUNTED = 20.0


@dataclass(frozen=True)
class Predicted:
    """Predictions as matrices (n, n): [i, j] is the value of application i with application j."""

    speed: Floats
    deviation: Floats
    """Standard deviation of a new measurement."""
    shortfall: Floats = field(repr=False)
    """By how many standard deviations each measurement was below its prediction, in ascending order.

    The prediction uses only other pairs.
    """
    n_not_fitted: int = 0
    """Number of measured speeds that were not fitted; each corrects only its own pair."""

    def lower(self, confidence: float) -> Floats:
        """Return lower bounds that speeds exceed with this probability (0 to 1), given past errors."""
        if len(self.shortfall) == 0:
            return np.full_like(self.speed, SLOWEST)
        # Conformal prediction adds one to the number of values, for the value that is predicted.
        at = math.ceil(confidence * (len(self.shortfall) + 1)) - 1
        far = self.shortfall[at] if at < len(self.shortfall) else max(self.shortfall[-1], 3.0)
        return np.asarray(np.clip(self.speed - far * self.deviation, SLOWEST, 1.0))

    def chance(self, least: float) -> Floats:
        """Return the probability (n, n) that a speed is at least `least`, given past errors."""
        below = np.searchsorted(self.shortfall, (self.speed - least) / self.deviation, side="right")
        return np.asarray(below / (len(self.shortfall) + 1), dtype=np.float64)


def predict(
    traits: Sequence[Traits],
    speeds: Floats,
    counts: Floats | None = None,
    prior: Floats | None = None,
    scales: Scales | None = None,
    most: int = MOST_FITTED,
) -> Predicted:
    """Predict every pair's speed from the measured pairs.

    In `speeds` (n, n), [i, j] is the speed of i with j. It is NaN if the pair was not measured. It is 0 if
    the pair cannot run together; such a speed has no effect on predictions. `counts` contains the number of
    measurements in each mean. `prior` is the prediction without data; by default, it is the mean of all
    speeds. Two jobs of one application are a pair like any other.

    At most `most` speeds are fitted, the most informative ones; if there are more, a warning is logged once.
    The cost is cubic in the number of fitted speeds: 600 take half a second. Raise ValueError if a shape or
    value is invalid.
    """
    n = len(traits)
    for what, given in (("speeds", speeds), ("counts", counts), ("prior", prior)):
        if given is not None and given.shape != (n, n):
            raise ValueError(f"{what} of {n} applications must have the shape {(n, n)}, not {given.shape}")
    measured = speeds[~np.isnan(speeds)]
    if not ((measured >= 0) & (measured <= 1)).all():
        raise ValueError("speeds with co-runners must be from 0 to 1, relative to running alone")
    level = float(measured[measured > 0].mean()) if (measured > 0).any() else _NOTHING_KNOWN
    prior_mean = np.full((n, n), level) if prior is None else np.where(np.isnan(prior), level, prior)
    entries = _entries(speeds, counts)
    if len(entries.speed) == 0:
        parts = (scales or Scales()).of(USUAL_VARIANCE).variances
        deviation = np.full((n, n), math.sqrt(sum(parts)))
        return Predicted(np.clip(prior_mean, SLOWEST, 1.0), deviation, np.zeros(0))
    fit = functools.partial(
        fitted, likeness(traits), prior_mean=prior_mean, scales=scales or Scales(), most=most
    )
    process = fit(entries)
    n_not_fitted = len(process.own_only)
    if n_not_fitted:
        _warn_once(most)
    speed, deviation = process.everywhere()
    kept, left_out, left_out_deviation = process.left_out()
    completion = complete(np.where(speeds > 0, speeds, np.nan))
    if completion is not None:
        weight = _weight(completion, fit, entries)
        unmeasured = np.where(speeds > 0, np.nan, completion.everywhere)
        speed = _blended(speed, unmeasured, weight)
        left_out = _blended(left_out, completion.left_out[kept.one, kept.other], weight)
    speed = np.clip(speed, SLOWEST, 1.0)
    shortfall = (np.clip(left_out, SLOWEST, 1.0) - kept.speed) / left_out_deviation
    return Predicted(speed, deviation, np.sort(shortfall), n_not_fitted=n_not_fitted)


def _weight(completion: Completion, fit: Callable[[Entries], GaussianProcess], entries: Entries) -> float:
    """Return the completion's weight that minimises the error for left-out pairs (Breiman 1996)."""
    errors = np.zeros(len(_WEIGHTS))
    for out in completion.folds[: max(_SELECTING, completion.n_selecting)]:
        of_fold = out[entries.one, entries.other]
        if of_fold.all():
            return 0.0
        asked = entries.at(of_fold)
        at = asked.one, asked.other
        speed, low = fit(entries.at(~of_fold)).everywhere()[0][at], completion.left_out[at]
        errors += [np.abs(_blended(speed, low, weight) - asked.speed).sum() for weight in _WEIGHTS]
    return _WEIGHTS[int(np.argmin(errors))]


def _blended(speed: Floats, low: Floats, weight: float) -> Floats:
    """Return the weighted mean where `low` is known, otherwise `speed`."""
    return np.where(np.isnan(low), speed, (1 - weight) * np.clip(speed, SLOWEST, 1.0) + weight * low)


@functools.cache
def _warn_once(most: int) -> None:
    """Log only once that the limit is exceeded, since a learner fits the same pairs many times."""
    log.warning(
        "more speeds of pairs were measured than a fit takes (%d): the most informative ones are fitted, "
        "and each of the others corrects only its own pair",
        most,
    )


def _entries(speeds: Floats, counts: Floats | None) -> Entries:
    rows, columns = np.nonzero(np.nan_to_num(speeds) > 0)
    count = np.ones(len(rows)) if counts is None else np.nan_to_num(counts[rows, columns])
    return Entries(rows, columns, speeds[rows, columns], np.clip(count, 1.0, _MOST_COUNTED))
