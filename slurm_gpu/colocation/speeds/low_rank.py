"""Complete a matrix of speeds by a truncated singular value decomposition.

If many pairs were measured, a few factors per application describe how much its co-runners slow it down and
how much it slows them down, regardless of the applications' traits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.profiles.traits import Floats

Bools = NDArray[np.bool_]

# Options: the rank, the reduction of the singular values after the first, and whether the logarithms are
# completed (independent slowdowns multiply). The completion averages the options that predict held-out pairs
# best.
_OPTIONS = tuple(product((1, 2, 3, 4, 6, 8), (0.0, 0.03), (False, True)))
_BEST = 2
# Number of folds of the pairs, and minimum number of pairs in the folds that select the options.
_FOLDS = 5
_SELECTING = 250
# A table with fewer measured pairs is not completed.
_FEWEST = 40
# Minimum number of measurements of an application, per factor of a completion.
_PER_FACTOR = 2
_STEPS = 60
# Weight of the mean in the effects of an application, in measurements.
_PENALTY = 1.0


@dataclass(frozen=True)
class Completion:
    """The completed speeds (n, n); NaN where an application has too few measurements."""

    everywhere: Floats
    left_out: Floats
    """(n, n) speeds of measured pairs, each completed without the measurements of that pair."""
    folds: tuple[Bools, ...]
    """For each fold, (n, n) whether the pair was left out."""
    n_selecting: int
    """Number of folds that selected the options."""


def complete(speeds: Floats) -> Completion | None:
    """Complete `speeds` (n, n), which are positive, or NaN if unmeasured.

    Return None if too few pairs were measured.
    """
    measured = ~np.isnan(speeds)
    pairs = np.argwhere(np.triu(measured | measured.T))
    if len(pairs) < _FEWEST:
        return None
    fold = _folds(speeds, pairs)
    outs = [_symmetric(pairs[fold == k], len(speeds)) for k in range(_FOLDS)]
    n_selecting = min(math.ceil(_SELECTING * _FOLDS / len(pairs)), _FOLDS)
    options = [option for option in _OPTIONS if option[0] < len(speeds)]
    errors = np.zeros(len(options))
    for out in outs[:n_selecting]:
        seen, asked = np.where(out, np.nan, speeds), out & measured
        errors += [np.abs(truncated(seen, *option) - speeds)[asked].sum() for option in options]
    best = [options[at] for at in np.argsort(errors, kind="stable")[:_BEST]]
    left_out = np.full_like(speeds, np.nan)
    for out in outs:
        left_out[out & measured] = _mean(np.where(out, np.nan, speeds), best)[out & measured]
    return Completion(_mean(speeds, best), left_out, tuple(outs), n_selecting)


def truncated(speeds: Floats, rank: int, less: float = 0.0, logarithms: bool = False) -> Floats:
    """Return speeds from 0 to 1 for all pairs (Mazumder and others, 2010).

    The completion begins with the effects of both applications. `less` reduces the singular values after the
    first.
    """
    measured = ~np.isnan(speeds)
    given = np.log(speeds) if logarithms else speeds
    found = _effects(given)
    for _ in range(_STEPS):
        u, values, v = np.linalg.svd(np.where(measured, given, found), full_matrices=False)
        values[1:] = np.maximum(values[1:] - less, 0.0)
        found = (u[:, :rank] * values[:rank]) @ v[:rank]
    return np.clip(np.exp(np.minimum(found, 0.0)) if logarithms else found, 0.0, 1.0)


def _effects(speeds: Floats) -> Floats:
    """Return the mean plus a sensitivity of each application and an effect of each co-runner."""
    measured = ~np.isnan(speeds)
    level = float(np.nanmean(speeds))
    rest = np.where(measured, speeds - level, 0.0)
    rows, columns = np.zeros(len(speeds)), np.zeros(len(speeds))
    for _ in range(_STEPS):
        rows = (rest - measured * columns).sum(axis=1) / (measured.sum(axis=1) + _PENALTY)
        columns = (rest - measured * rows[:, None]).sum(axis=0) / (measured.sum(axis=0) + _PENALTY)
    return np.asarray(level + rows[:, None] + columns)


def _mean(speeds: Floats, options: Sequence[tuple[int, float, bool]]) -> Floats:
    measured = ~np.isnan(speeds)
    n_of_each = np.minimum(measured.sum(axis=1), measured.sum(axis=0))
    total, many = np.zeros_like(speeds), np.zeros_like(speeds)
    for option in options:
        enough = n_of_each >= _PER_FACTOR * option[0]
        known = enough[:, None] & enough
        total, many = total + known * truncated(speeds, *option), many + known
    return np.where(many > 0, total / np.maximum(many, 1), np.nan)


def _folds(speeds: Floats, pairs: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the fold of each pair, assigned by speed, so that the applications' order does not matter."""
    measured = ~np.isnan(speeds)
    values = np.where(measured, speeds, 0.0)
    total = (values + values.T)[tuple(pairs.T)]
    of_each = (values.sum(axis=1) + values.sum(axis=0))[pairs]
    order = np.lexsort((of_each.prod(axis=1).round(9), total.round(9)))
    fold = np.empty(len(pairs), dtype=np.intp)
    fold[order] = np.arange(len(pairs)) % _FOLDS
    return fold


def _symmetric(pairs: NDArray[np.intp], n: int) -> Bools:
    out = np.zeros((n, n), dtype=bool)
    out[tuple(pairs.T)] = True
    return out | out.T
