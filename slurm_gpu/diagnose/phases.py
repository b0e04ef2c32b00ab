"""Find when a job computes and when it pauses, and correct small offsets between the clocks of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile, sigma, smooth
from slurm_gpu.diagnose.series import Series

# Maximum difference between nodes' clocks that is corrected.
OFFSET_S = 2.0
_COMPUTES = 0.4
# Share of the usual activity below which a job computes nothing.
_NOTHING = 0.15
_SHORTEST_PAUSE_S = 10.0
# Shifts whose fit is this close to the best count as equally good, since several shifts fit repeated steps.
_AS_GOOD = 0.02
# Approximate power of an idle GPU, as a share of the power limit.
_IDLE_POWER = 0.12
_READ_TOGETHER = (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.NVLINK, Metric.PCIE)
_LONGEST_REFRESH_S = 15.0
_LESS = 0.07
# Minimum meaningful traffic of a link, in rounding steps.
_WELL_ROUNDED = 10.0
# Minimum traffic of a job that trains, as a share of the usual traffic; a job with less may only seem busy.
_QUIET_LINKS = 0.1
_BY = (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.UTIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The activity of a job, `activity` (n_bins,), and of each worker, `of` (n_workers, n_bins).

    The usual activity is 1, and unknown activity is NaN. `metric` is the metric that shows the activity; None
    without data. `active` (n_bins,) marks bins in which the job computes.
    """

    metric: Metric | None
    of: Matrix
    activity: Matrix
    active: NDArray[np.bool_]

    @property
    def computes_nothing(self) -> NDArray[np.bool_]:
        """Mark the bins (n_bins,) in which the job computes nothing; none before it has begun to compute."""
        begun = np.logical_or.accumulate(self.active)
        return np.asarray(begun & (np.where(np.isfinite(self.activity), self.activity, 1.0) < _NOTHING))

    def pauses(self) -> list[tuple[int, int]]:
        """Return the pauses as bins [first, stop) between two times of computation."""
        busy = np.flatnonzero(self.active)
        if busy.size < 2:
            return []
        gaps = np.flatnonzero(np.diff(busy) > 1)
        runs = [(int(busy[gap]) + 1, int(busy[gap + 1])) for gap in gaps]
        nothing = self.computes_nothing
        return [(a, b) for a, b in runs if nothing[a:b].any()]

    def stalled_from(self) -> int | None:
        """Return the first bin of a stall that lasts until the end; None if the job computes at the end."""
        busy = np.flatnonzero(self.active)
        if not busy.size or busy[-1] == len(self.active) - 1:
            return None
        known = np.isfinite(self.activity[busy[-1] + 1 :])
        nothing = self.computes_nothing[busy[-1] + 1 :]
        if not nothing.any() or (known & ~nothing)[np.argmax(nothing) :].any():
            return None
        # A sample that covers both computation and the stall belongs to the stall.
        return int(busy[-1] + 1)


def phases(series: Series) -> Phases:
    """Find phases by tensor pipe, SM activity, power or utilisation.

    The first of these metrics that most workers report is used.
    """
    n, n_bins = len(series.workers), series.n_bins
    for metric in _BY:
        matrix = series.get(metric)
        if matrix is None or np.isfinite(matrix).any(axis=1).mean() < 0.5:
            continue
        amount = np.maximum(matrix - _IDLE_POWER, 0.0) if metric is Metric.POWER else matrix
        # A job that has hung for a long time has not trained for most of its time.
        usual = np.maximum(quantile(amount, 0.75), 0.5 * quantile(amount, 0.95))[:, None]
        if not (usual > 0.01).any():
            # The job does not use this unit, for example the tensor pipe.
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            of = np.where(usual > 0.01, amount / usual, np.nan)
        if metric in (Metric.POWER, Metric.UTIL) and (moved := traffic(series)) is not None:
            # Spinning draws power and counts as utilisation, but it causes no traffic.
            with np.errstate(invalid="ignore"):
                of = np.where(moved < _QUIET_LINKS, np.minimum(of, moved), of)
        activity = median(of.T)
        active = _without_short_gaps(activity >= _COMPUTES, series.width_s)
        return Phases(metric=metric, of=of, activity=activity, active=active)
    gaps = np.full((n, n_bins), np.nan)
    return Phases(metric=None, of=gaps, activity=np.full(n_bins, np.nan), active=np.zeros(n_bins, dtype=bool))


def traffic(series: Series) -> Matrix | None:
    """Return the relative traffic of GPUs (n_bins,) over the link with the most traffic; None if unknown."""
    found = []
    own_links = [metric for metric in (Metric.NVLINK, Metric.PCIE) if series.get(metric) is not None]
    # Live values do not contain the traffic of GPUs. Between nodes, gradients use InfiniBand in each step.
    for metric in own_links or [Metric.INFINIBAND]:
        matrix = series.get(metric)
        if matrix is None:
            continue
        job = median(matrix.T)
        usual = max(float(quantile(job[None, :], 0.75)[0]), 0.5 * float(quantile(job[None, :], 0.95)[0]))
        if usual > max(1e-3, _WELL_ROUNDED * series.step):
            found.append(job / usual)
    return np.fmax.reduce(found) if found else None


def _without_short_gaps(active: NDArray[np.bool_], width_s: float) -> NDArray[np.bool_]:
    """Mark short gaps as active, because workers communicate in gaps that are too short for a pause."""
    whole = active.copy()
    for before, after in pairwise(np.flatnonzero(active)):
        if (after - before - 1) * width_s < _SHORTEST_PAUSE_S:
            whole[before:after] = True
    return whole


def surely_active(found: Phases, series: Series) -> NDArray[np.bool_]:
    """Mark the bins (n_bins,) in which all workers certainly compute, despite the offsets of their clocks.

    Bins are excluded if they are closer to a pause than OFFSET_S plus twice the refresh interval of counters.
    Nodes read counters at different moments, so some show more of a pause than others. Two short pauses may
    also appear as a long, shallow one.
    """
    width_s = series.width_s
    near = int(np.ceil((OFFSET_S + 2 * refresh_interval_s(series)) / width_s)) if width_s <= OFFSET_S else 0
    if found.metric is None or not near:
        return found.active.copy()
    known = np.isfinite(found.activity)
    paused = np.pad((~found.active & known).astype(np.float64), near)
    return np.asarray(found.active & (np.convolve(paused, np.ones(2 * near + 1), "valid") < 0.5))


def short_dips(found: Phases, n: int, least: int) -> NDArray[np.bool_]:
    """Mark blocks of `n` bins with reduced activity if fewer than `least` such blocks are consecutive.

    The result has shape (n_bins // n,). Such blocks are a short dip or the beginning of a pause. Workers
    differ in them only because their counters are read at different times.
    """
    level = median(smooth(np.where(found.active, found.of, np.nan), n).T)
    usual = middle(level)
    with np.errstate(invalid="ignore"):
        low = level < usual - max(_LESS * usual, 3.0 * sigma(level))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], low, [False]]).astype(int)))
    short = np.zeros(len(level), dtype=bool)
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        short[first:stop] = stop - first < least
    return short


def refresh_interval_s(series: Series) -> float:
    """Return the interval in seconds at which counters are refreshed; 0 if each bin has new values."""
    lengths = []
    for metric in _READ_TOGETHER:
        matrix = series.get(metric)
        if matrix is None or series.n_bins < 2:
            continue
        with np.errstate(invalid="ignore"):
            # An idle GPU's values do not change.
            both = (matrix[:, 1:] > 0) & (matrix[:, :-1] > 0)
        changes = (matrix[:, 1:] != matrix[:, :-1]) & both
        often = changes.sum(axis=1) / np.maximum(both.sum(axis=1), 1)
        lengths.append(1.0 / max(float(np.median(often)), 1e-3))
    # The interval cannot be derived from metrics that hardly change.
    bins = max((length for length in lengths if length * series.width_s <= _LONGEST_REFRESH_S), default=1.0)
    return bins * series.width_s if bins > 1.5 else 0.0


def without_offsets(series: Series, found: Phases) -> Series:
    """Shift nodes' rows by the offsets of their clocks, found by correlating the activity of nodes.

    Rows are shifted only if bins are short and the shift clearly improves the correlation.
    """
    most = int(OFFSET_S / series.width_s)
    if most < 1 or series.n_bins <= 4 * most or len(series.nodes) < 2 or found.metric is None:
        return series
    # All nodes are shifted relative to the first node, whose own offset is unknown. Otherwise two nodes would
    # be shifted towards each other.
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
    """Shift rows `lag` bins earlier, and fill the end with NaN."""
    moved = np.full_like(rows, np.nan)
    n = rows.shape[1]
    moved[:, max(-lag, 0) : n - max(lag, 0)] = rows[:, max(lag, 0) : n - max(-lag, 0)]
    return moved
