"""Compute distributions of waits on a fixed logarithmic grid, and their quantiles.

The ratio of bin edges is constant, since waits range from minutes to weeks and the error of a forecast is a
factor. A distribution is an array (…, N_BINS) of probabilities that add up to 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PER_OCTAVE = 4
_FIRST_OCTAVE, _LAST_OCTAVE = 4, 23
# Edges between bins: 16 s to 97 days, four bins for each doubling. The first and last bin are open.
EDGES_S: Floats = 2.0 ** (
    np.arange(_FIRST_OCTAVE * _PER_OCTAVE, _LAST_OCTAVE * _PER_OCTAVE + 1) / _PER_OCTAVE
)
N_BINS = len(EDGES_S) + 1
# log2 of the edges of all bins.
_BOUNDS = np.concatenate(
    [[np.log2(EDGES_S[0]) - 1], np.log2(EDGES_S), [np.log2(EDGES_S[-1]) + 1 / _PER_OCTAVE]]
)
# Jobs whose wait has no known end are distributed over this number of doublings after the longest known wait.
_TAIL_OCTAVES = 2
_SMOOTH = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 9.0
# Edges of the bins of errors: octaves by which the true wait exceeds the forecast.
ERROR_BIN_EDGES: Floats = np.arange(-12 * _PER_OCTAVE, 12 * _PER_OCTAVE + 1) / _PER_OCTAVE
N_ERROR_BINS = len(ERROR_BIN_EDGES) - 1


def bin_of(wait_s: Floats) -> NDArray[np.intp]:
    """Return the index of the bin of each wait in seconds."""
    return np.searchsorted(EDGES_S, wait_s, side="right")


def distribution(started: Floats, waiting: Floats) -> Floats:
    """Return the Kaplan-Meier estimate of the waits.

    `started` contains the weights of the jobs that started in each bin, and `waiting` those of the jobs whose
    last known wait is in the bin. Both have the shape (…, N_BINS). Without `waiting`, all forecasts would be
    too short, especially in a growing queue.
    """
    seen = started + waiting
    # A job that still waited when last seen was, on average, at risk for half of that bin.
    at_risk = np.cumsum(seen[..., ::-1], axis=-1)[..., ::-1] - waiting / 2
    hazard = np.divide(started, at_risk, out=np.zeros_like(seen), where=at_risk > 0).clip(0.0, 1.0)
    after = np.cumprod(1.0 - hazard, axis=-1)
    before = np.concatenate([np.ones((*after.shape[:-1], 1)), after[..., :-1]], axis=-1)
    mass = before * hazard
    rest = after[..., -1:] / (_TAIL_OCTAVES * _PER_OCTAVE)
    last = np.where(seen > 0, np.arange(N_BINS), -1).max(axis=-1, keepdims=True)
    for step in range(1, _TAIL_OCTAVES * _PER_OCTAVE + 1):
        later_bin = np.minimum(last + step, N_BINS - 1)
        np.put_along_axis(mass, later_bin, np.take_along_axis(mass, later_bin, -1) + rest, -1)
    return np.asarray(mass)


def error_bin_of(octaves: Floats) -> NDArray[np.intp]:
    """Return the index of the bin of each error; errors outside ERROR_BIN_EDGES count in the outer bins."""
    return np.searchsorted(ERROR_BIN_EDGES[1:-1], octaves, side="right")


def smoothed(counts: Floats) -> Floats:
    """Return `counts` (n, bins) smoothed over neighbouring bins."""
    width, n_bins = len(_SMOOTH), counts.shape[1]
    padded = np.pad(counts, ((0, 0), (width // 2,) * 2))
    return np.asarray(sum(weight * padded[:, i : i + n_bins] for i, weight in enumerate(_SMOOTH)))


def around(log2_wait: Floats, errors: Floats) -> Floats:
    """Return distributions (n, N_BINS) around forecasts (n); `errors` has the shape (n, N_ERROR_BINS)."""
    total = np.concatenate([np.zeros((len(errors), 1)), np.cumsum(errors, axis=1)], axis=1)
    bounds = np.concatenate([[-np.inf], _BOUNDS[1:-1], [np.inf]])
    place = ((bounds - log2_wait[:, None] - ERROR_BIN_EDGES[0]) * _PER_OCTAVE).clip(0, N_ERROR_BINS)
    lower = np.minimum(place.astype(np.intp), N_ERROR_BINS - 1)
    below = np.take_along_axis(total, lower, 1)
    above = np.take_along_axis(total, lower + 1, 1)
    return np.diff(below + (place - lower) * (above - below), axis=1)


def shortest_window(mass: Floats, share: float) -> tuple[Floats, Floats]:
    """Return the ends (n) in seconds of the shortest interval of bins with at least this probability."""
    first, inside = _windows(mass)
    width = np.minimum((inside < share).sum(axis=1), N_BINS - 1)
    start = first[np.arange(len(mass)), width]
    # The first bin is open.
    return np.where(start > 0, 2.0 ** _BOUNDS[start], 1.0), 2.0 ** _BOUNDS[start + width + 1]


def share_needed(mass: Floats, wait_s: Floats) -> Floats:
    """Return the lowest probability (n) for which `shortest_window` contains the wait."""
    first, inside = _windows(mass)
    place = bin_of(wait_s)[:, None]
    width = np.argmax((first <= place) & (place <= first + np.arange(N_BINS)), axis=1)
    return np.asarray(inside[np.arange(len(mass)), width])


def _windows(mass: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the first bin and the probability of the likeliest window of 1 to N_BINS bins, (n, N_BINS)."""
    total = _total(mass / mass.sum(axis=1, keepdims=True))
    first, inside = np.zeros(mass.shape, dtype=np.intp), np.zeros(mass.shape)
    for width in range(1, N_BINS + 1):
        of_width = total[:, width:] - total[:, : N_BINS + 1 - width]
        first[:, width - 1] = of_width.argmax(axis=1)
        inside[:, width - 1] = of_width.max(axis=1)
    return first, inside


def quantile(mass: Floats, share: float | Floats) -> Floats:
    """Return the quantile `share` of each distribution, in seconds.

    The result has the shape (…) for distributions of the shape (…, N_BINS).
    """
    total = np.cumsum(mass, axis=-1)
    total /= total[..., -1:]
    wanted = np.broadcast_to(np.asarray(share, dtype=float), total.shape[:-1])[..., None]
    found = np.minimum((total < wanted).sum(axis=-1, keepdims=True), N_BINS - 1)
    upper = np.take_along_axis(total, found, -1)
    lower = np.where(found > 0, np.take_along_axis(total, np.maximum(found - 1, 0), -1), 0.0)
    within = np.divide(wanted - lower, upper - lower, out=np.zeros_like(upper), where=upper > lower)
    exponent = _BOUNDS[found] + within.clip(0.0, 1.0) * (_BOUNDS[found + 1] - _BOUNDS[found])
    return np.asarray(2.0 ** exponent[..., 0])


def likeliest(mass: Floats) -> Floats:
    """Return each distribution's wait in seconds that is most likely within a factor of two of the truth.

    The result is the centre of the window with the highest probability. A second, wider window has the same
    weight, so the broader of two equal peaks is chosen. The median is not used: it could lie between peaks.
    """
    candidates = np.linspace(_BOUNDS[0], _BOUNDS[-1], 2 * N_BINS + 1)[None, :]
    total = _total(mass)
    inside = np.zeros((len(mass), candidates.shape[1]))
    for width in (1.0, np.log2(3.0)):
        inside += _total_at(total, candidates + width) - _total_at(total, candidates - width)
    return np.asarray(2.0 ** candidates[0, np.argmax(smoothed(inside), axis=1)])


def _total(mass: Floats) -> Floats:
    """Return the cumulative probabilities at the edges, (n, N_BINS + 1)."""
    return np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)], axis=1)


def _total_at(total: Floats, exponents: Floats) -> Floats:
    """Interpolate `total` linearly at the exponents, which are log2 of waits, (n, k) or (1, k)."""
    found = np.clip(np.searchsorted(_BOUNDS, exponents, side="right") - 1, 0, N_BINS - 1)
    found = np.broadcast_to(found, (len(total), found.shape[1]))
    share = ((exponents - _BOUNDS[found]) / (_BOUNDS[found + 1] - _BOUNDS[found])).clip(0.0, 1.0)
    lower = np.take_along_axis(total, found, 1)
    return np.asarray(lower + share * (np.take_along_axis(total, found + 1, 1) - lower))
