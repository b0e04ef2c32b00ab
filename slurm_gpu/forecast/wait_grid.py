"""Distributions of a wait over a fixed grid of its logarithm, and what is read off them.

A wait may be minutes or weeks, and a forecast is right by a factor and not by minutes, so bins grow by the
same factor throughout. A distribution is an array (…, N_BINS) of probabilities that add up to 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PER_OCTAVE = 4
_FIRST_OCTAVE, _LAST_OCTAVE = 4, 23
# Between bins: 16 s to 97 days, four bins for each doubling. What lies beyond has a bin of its own.
EDGES_S: Floats = 2.0 ** (
    np.arange(_FIRST_OCTAVE * _PER_OCTAVE, _LAST_OCTAVE * _PER_OCTAVE + 1) / _PER_OCTAVE
)
N_BINS = len(EDGES_S) + 1
# log2 of where bins begin and end.
_BOUNDS = np.concatenate(
    [[np.log2(EDGES_S[0]) - 1], np.log2(EDGES_S), [np.log2(EDGES_S[-1]) + 1 / _PER_OCTAVE]]
)
# Where those went whose end was never seen: into so many doublings after the last wait that was.
_OCTAVES_BEYOND = 2
_SMOOTH = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 9.0
# Between the bins of a spread: octaves by which the truth is more than what was said.
SPREAD_OCTAVES: Floats = np.arange(-12 * _PER_OCTAVE, 12 * _PER_OCTAVE + 1) / _PER_OCTAVE


def bin_of(wait_s: Floats) -> NDArray[np.intp]:
    """The bin of each wait in seconds."""
    return np.searchsorted(EDGES_S, wait_s, side="right")


def distribution(started: Floats, waiting: Floats) -> Floats:
    """What waits were, of those that `started` in each bin and those of which no more is known than that they
    were still `waiting` in it: the estimator of Kaplan and Meier, for weights of shape (…, N_BINS).

    Leaving out who still waits would make every forecast too short, most of all while the queue grows.
    """
    seen = started + waiting
    # Those who still wait when last seen did so, on average, through half of that bin.
    at_risk = np.cumsum(seen[..., ::-1], axis=-1)[..., ::-1] - waiting / 2
    hazard = np.divide(started, at_risk, out=np.zeros_like(seen), where=at_risk > 0).clip(0.0, 1.0)
    after = np.cumprod(1.0 - hazard, axis=-1)
    before = np.concatenate([np.ones((*after.shape[:-1], 1)), after[..., :-1]], axis=-1)
    mass = before * hazard
    rest = after[..., -1:] / (_OCTAVES_BEYOND * _PER_OCTAVE)
    last = np.where(seen > 0, np.arange(N_BINS), -1).max(axis=-1, keepdims=True)
    for step in range(1, _OCTAVES_BEYOND * _PER_OCTAVE + 1):
        beyond = np.minimum(last + step, N_BINS - 1)
        np.put_along_axis(mass, beyond, np.take_along_axis(mass, beyond, -1) + rest, -1)
    return np.asarray(mass)


def spread_of(octaves: Floats, weight: Floats) -> Floats:
    """The shares of past errors, (n) octaves that count for `weight` (n), in each bin of SPREAD_OCTAVES."""
    inside = np.clip(octaves, SPREAD_OCTAVES[0], SPREAD_OCTAVES[-1])
    counts = np.histogram(inside, SPREAD_OCTAVES, weights=weight)[0]
    smooth = np.convolve(counts, _SMOOTH, mode="same")
    return np.asarray(smooth / smooth.sum())


def around(log2_wait: Floats, spread: Floats) -> Floats:
    """(n, N_BINS): what (n) waits may be of which the forecasts err as in the past; see `spread_of`."""
    total = np.concatenate([[0.0], np.cumsum(spread)])
    bounds = np.concatenate([[-np.inf], _BOUNDS[1:-1], [np.inf]])
    return np.diff(np.interp(bounds - log2_wait[:, None], SPREAD_OCTAVES, total), axis=1)


def quantile(mass: Floats, share: float | Floats) -> Floats:
    """The wait in seconds that a `share` of each distribution does not exceed; (…) for (…, N_BINS)."""
    total = np.cumsum(mass, axis=-1)
    total /= total[..., -1:]
    wanted = np.broadcast_to(np.asarray(share, dtype=float), total.shape[:-1])[..., None]
    found = np.minimum((total < wanted).sum(axis=-1, keepdims=True), N_BINS - 1)
    upper = np.take_along_axis(total, found, -1)
    lower = np.where(found > 0, np.take_along_axis(total, np.maximum(found - 1, 0), -1), 0.0)
    within = np.divide(wanted - lower, upper - lower, out=np.zeros_like(upper), where=upper > lower)
    exponent = _BOUNDS[found] + within.clip(0.0, 1.0) * (_BOUNDS[found + 1] - _BOUNDS[found])
    return np.asarray(2.0 ** exponent[..., 0])


def likeliest(mass: Floats, factor: float = 2.0, wider: float = 3.0) -> Floats:
    """The wait in seconds from which the truth is least likely to be further than `factor` away.

    (n) for (n, N_BINS). It is the middle of the window that holds most; one of `wider` counts as much,
    so that of two peaks alike the one with more around it is taken. The median would lie between them.
    """
    candidates = np.linspace(_BOUNDS[0], _BOUNDS[-1], 2 * N_BINS + 1)[None, :]
    total = _total(mass)
    held = np.zeros((len(mass), candidates.shape[1]))
    for width in (np.log2(factor), np.log2(wider)):
        held += _total_at(total, candidates + width) - _total_at(total, candidates - width)
    padded = np.pad(held, ((0, 0), (len(_SMOOTH) // 2,) * 2))
    smooth = sum(weight * padded[:, offset : offset + held.shape[1]] for offset, weight in enumerate(_SMOOTH))
    return np.asarray(2.0 ** candidates[0, np.argmax(smooth, axis=1)])


def _total(mass: Floats) -> Floats:
    """(n, N_BINS + 1): what lies before each bound."""
    return np.concatenate([np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)], axis=1)


def _total_at(total: Floats, exponents: Floats) -> Floats:
    """`total` at log2 of waits, (n, k) or (1, k), straight between bounds."""
    found = np.clip(np.searchsorted(_BOUNDS, exponents, side="right") - 1, 0, N_BINS - 1)
    found = np.broadcast_to(found, (len(total), found.shape[1]))
    share = ((exponents - _BOUNDS[found]) / (_BOUNDS[found + 1] - _BOUNDS[found])).clip(0.0, 1.0)
    lower = np.take_along_axis(total, found, 1)
    return np.asarray(lower + share * (np.take_along_axis(total, found + 1, 1) - lower))
