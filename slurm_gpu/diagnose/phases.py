"""What the job as a whole does: when it computes and when it pauses; and nodes' clocks that are a bit off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile, sigma, smooth
from slurm_gpu.diagnose.series import Series

OFFSET_S = 2.0
"""So far may nodes' clocks be apart."""
_COMPUTES = 0.4
_STANDS = 0.15
"""Shares of the usual activity."""
_SHORTEST_PAUSE_S = 10.0
_AS_GOOD = 0.02
"""Fits this near to the best are as good: of steps that repeat, several shifts fit."""
_IDLE_POWER = 0.12
"""Of the limit: about what a GPU takes that does nothing."""
_READ_TOGETHER = (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.NVLINK, Metric.PCIE)
_LONGEST_HELD_S = 15.0
_LESS = 0.07
_WELL_ROUNDED = 10.0
"""Steps of rounding that a link must carry for its traffic to tell anything."""
_QUIET_LINKS = 0.1
"""Of their usual traffic: who exchanges nothing trains not, however busy it looks."""
_BY = (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.UTIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """`activity` (n_bins,) of the job, 1 is usual, NaN not told; `of` (n_workers, n_bins) of each worker.

    `metric` is what it was told by, None where nothing was; `active` (n_bins,): the job computes.
    """

    metric: Metric | None
    of: Matrix
    activity: Matrix
    active: NDArray[np.bool_]

    def pauses(self) -> list[tuple[int, int]]:
        """Bins [first, last) in which the job computes not at all, between two in which it does."""
        busy = np.flatnonzero(self.active)
        if busy.size < 2:
            return []
        gaps = np.flatnonzero(np.diff(busy) > 1)
        runs = [(int(busy[gap]) + 1, int(busy[gap + 1])) for gap in gaps]
        return [(a, b) for a, b in runs if np.nanmin(np.append(self.activity[a:b], np.inf)) < _STANDS]

    def stands_from(self) -> int | None:
        """The first bin since which the job has done nothing, to the end; None where it goes on."""
        busy = np.flatnonzero(self.active)
        if not busy.size or busy[-1] == len(self.active) - 1:
            return None
        after = self.activity[busy[-1] + 1 :]
        first = np.flatnonzero(after < _STANDS)
        if not first.size or not (after[first[0] :][np.isfinite(after[first[0] :])] < _STANDS).all():
            return None
        # What was read across the moment shows some of both: it belongs to what came after.
        return int(busy[-1] + 1)


def phases(series: Series) -> Phases:
    """By the tensor pipe, SM activity, power or utilisation: the first that most workers told."""
    n, n_bins = len(series.workers), series.n_bins
    for metric in _BY:
        matrix = series.get(metric)
        if matrix is None or np.isfinite(matrix).any(axis=1).mean() < 0.5:
            continue
        amount = np.maximum(matrix - _IDLE_POWER, 0.0) if metric is Metric.POWER else matrix
        # Of a job that hung long ago most of the time is no training.
        usual = np.maximum(quantile(amount, 0.75), 0.5 * quantile(amount, 0.95))[:, None]
        if not (usual > 0.01).any():
            continue  # such as a tensor pipe that nobody uses
        with np.errstate(invalid="ignore", divide="ignore"):
            of = np.where(usual > 0.01, amount / usual, np.nan)
        if metric in (Metric.POWER, Metric.UTIL) and (moved := traffic(series)) is not None:
            # Who waits spins, which takes power and is utilisation: that nothing is exchanged gives it away.
            with np.errstate(invalid="ignore"):
                of = np.where(moved < _QUIET_LINKS, np.minimum(of, moved), of)
        activity = median(of.T)
        active = _without_breaths(activity >= _COMPUTES, series.width_s)
        return Phases(metric=metric, of=of, activity=activity, active=active)
    gaps = np.full((n, n_bins), np.nan)
    return Phases(metric=None, of=gaps, activity=np.full(n_bins, np.nan), active=np.zeros(n_bins, dtype=bool))


def traffic(series: Series) -> Matrix | None:
    """(n_bins,) what the links of GPUs carry, of the usual: the most of all links; None where not told."""
    found = []
    told = [metric for metric in (Metric.NVLINK, Metric.PCIE) if series.get(metric) is not None]
    # Live values have none of GPUs; between nodes gradients go over InfiniBand in each step.
    for metric in told or [Metric.INFINIBAND]:
        matrix = series.get(metric)
        if matrix is None:
            continue
        job = median(matrix.T)
        usual = max(float(quantile(job[None, :], 0.75)[0]), 0.5 * float(quantile(job[None, :], 0.95)[0]))
        if usual > max(1e-3, _WELL_ROUNDED * series.step):
            found.append(job / usual)
    return np.fmax.reduce(found) if found else None


def _without_breaths(active: NDArray[np.bool_], width_s: float) -> NDArray[np.bool_]:
    """Less than a pause between two times of computing is part of a step: there workers communicate."""
    whole = active.copy()
    for before, after in pairwise(np.flatnonzero(active)):
        if (after - before - 1) * width_s < _SHORTEST_PAUSE_S:
            whole[before:after] = True
    return whole


def surely_active(found: Phases, series: Series) -> NDArray[np.bool_]:
    """Bins (n_bins,) in which all compute, whatever their clocks.

    None lies within OFFSET_S of a pause, nor within twice what the counters are means of: each node reads
    them at moments of its own, so that some show more of a pause than others, and two short ones look like
    one that is long and shallow.
    """
    width_s = series.width_s
    near = int(np.ceil((OFFSET_S + 2 * held_s(series)) / width_s)) if width_s <= OFFSET_S else 0
    if found.metric is None or not near:
        return found.active.copy()
    known = np.isfinite(found.activity)
    paused = np.pad((~found.active & known).astype(np.float64), near)
    return np.asarray(found.active & (np.convolve(paused, np.ones(2 * near + 1), "valid") < 0.5))


def in_passing(found: Phases, n: int, least: int) -> NDArray[np.bool_]:
    """Blocks of `n` bins (n_bins // n,) in which the job does less than usual for fewer than `least` of them.

    It stumbles, or a pause begins that does not show as one yet: what differs is who reads its counters when.
    """
    level = median(smooth(np.where(found.active, found.of, np.nan), n).T)
    usual = middle(level)
    with np.errstate(invalid="ignore"):
        low = level < usual - max(_LESS * usual, 3.0 * sigma(level))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], low, [False]]).astype(int)))
    passing = np.zeros(len(level), dtype=bool)
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        passing[first:stop] = stop - first < least
    return passing


def held_s(series: Series) -> float:
    """For how long counters stand before they are read again: 0 where each bin has values of its own."""
    lengths = []
    for metric in _READ_TOGETHER:
        matrix = series.get(metric)
        if matrix is None or series.n_bins < 2:
            continue
        with np.errstate(invalid="ignore"):
            both = (matrix[:, 1:] > 0) & (matrix[:, :-1] > 0)  # who stands still changes nothing
        changes = (matrix[:, 1:] != matrix[:, :-1]) & both
        often = changes.sum(axis=1) / np.maximum(both.sum(axis=1), 1)
        lengths.append(1.0 / max(float(np.median(often)), 1e-3))
    # What hardly ever changes tells nothing of when it is read.
    bins = max((length for length in lengths if length * series.width_s <= _LONGEST_HELD_S), default=1.0)
    return bins * series.width_s if bins > 1.5 else 0.0


def without_offsets(series: Series, found: Phases) -> Series:
    """Nodes' rows moved by what their clocks seem to be behind or ahead, by what all of them do at once.

    Only where bins are fine enough to show it, and where it fits clearly better than the clocks as they are.
    """
    most = int(OFFSET_S / series.width_s)
    if most < 1 or series.n_bins <= 4 * most or len(series.nodes) < 2 or found.metric is None:
        return series
    # All against one node, or each would move towards the other; of that one nobody knows how far off it is.
    first, *others = series.nodes
    reference = median(found.of[series.on(first)].T)
    lags = {first: 0}
    for node in others:
        course = median(found.of[series.on(node)].T)
        fits = {lag: _fit(course, reference, lag) for lag in range(-2 * most, 2 * most + 1)}
        best = max(fits.values())
        lag = min((lag for lag, fit in fits.items() if fit >= best - _AS_GOOD), key=abs)
        lags[node] = lag if best >= 0.5 and fits[lag] > fits[0] + 0.1 else 0
    usual = int(np.median(list(lags.values())))
    offsets = {node: (lag - usual) * series.width_s for node, lag in lags.items() if lag != usual}
    if not offsets:
        return series
    values = {metric: matrix.copy() for metric, matrix in series.values.items()}
    for node in offsets:
        rows = series.on(node)
        for matrix in values.values():
            matrix[rows] = _moved(matrix[rows], lags[node] - usual)
    return replace(series, values=values, offsets_s=offsets)


def _fit(course: Matrix, reference: Matrix, lag: int) -> float:
    moved = _moved(course[None, :], lag)[0]
    both = np.isfinite(moved) & np.isfinite(reference)
    if both.sum() < 16:
        return -1.0
    a, b = moved[both] - middle(moved[both]), reference[both] - middle(reference[both])
    length = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / length) if length > 0 else -1.0


def _moved(rows: Matrix, lag: int) -> Matrix:
    """Earlier by `lag` bins; gaps where nothing is known."""
    moved = np.full_like(rows, np.nan)
    n = rows.shape[1]
    moved[:, max(-lag, 0) : n - max(lag, 0)] = rows[:, max(lag, 0) : n - max(-lag, 0)]
    return moved
