"""Abstain if a job may often lose a little time, although no worker differs for a long time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, mean, median, middle, quantile, smooth
from slurm_gpu.diagnose.signals import Signal, blocks
from slurm_gpu.diagnose.verdict import LONG_PAUSE, UNEXPLAINED, Cause, Evidence, Verdict

# Minimum share of the time that is lost. A healthy verdict excludes losses of a tenth.
_LEAST_LOSS = 0.07
# Share of the time at which pauses for checkpoints and evaluations become unusual.
_MOST_PAUSED = 0.2
# Quantile of the blocks that represents the job's best pace. In an evaluation, the pace may be higher.
_BEST = 0.8
# Minimum utilisation in a pause in which GPUs wait for others; in other pauses, the job saves or loads.
_SPINS = 0.5
# A waiting GPU draws half the power of a computing GPU, so power falls by half as much as the pace.
_OF_POWER = 2.0
# Maximum values of units and links that are not in use.
_IDLE, _IDLE_LINK = 0.01, 0.001


def lost_at_times(case: Case) -> Verdict | None:
    """Find losses in the time from the first to the last step, including times near pauses."""
    busy = np.flatnonzero(case.phases.active)
    if not busy.size:
        return None
    inside = np.zeros(case.series.n_bins, dtype=bool)
    inside[busy[0] : busy[-1] + 1] = True
    return (
        _paused(case, inside)
        or _some_lack_input(case, inside)
        or _some_wait(case)
        or _all_slower(case, inside)
    )


def _paused(case: Case, inside: NDArray[np.bool_]) -> Verdict | None:
    """Find jobs that pause often, and for longer in total than checkpoints and evaluations usually take."""
    share = float(case.phases.computes_nothing[inside].mean())
    if share < _MOST_PAUSED:
        return None
    why = f"nothing computed for {share:.0%} of the time between the first and the last step"
    item = Evidence(text=why, metric="activity", value=1 - share, expected=1.0)
    return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=LONG_PAUSE, evidence=(item,), why_not=(why,))


def _some_lack_input(case: Case, inside: NDArray[np.bool_]) -> Verdict | None:
    """Find GPUs that, in turn or repeatedly, have nothing to run while the other GPUs are busy."""
    util = case.series.get(Metric.UTIL)
    if util is None:
        return None
    rows = smooth(np.where(inside, util, np.nan), case.bins_of_block)
    what = "nothing to run while its peers are busy"
    why = ": late input, or work that one worker does for all workers"
    return _at_times(case, rows, case.groups.members(), Signal.UTIL, what, why)


def _some_wait(case: Case) -> Verdict | None:
    """Find GPUs that compute for longer than the others on their nodes, in turn or repeatedly."""
    busy = case.signals.get(Signal.BUSY)
    if busy is None:
        return None
    # Nodes read counters at different times.
    nodes = [case.series.on(node) for node in case.series.nodes]
    units = [np.intersect1d(members, rows) for members in case.groups.members() for rows in nodes]
    units = [rows for rows in units if rows.size > 1]
    usual, waits = quantile(busy, 0.25)[:, None], np.full(busy.shape, np.nan)
    relative = np.divide(busy, usual, out=waits.copy(), where=usual > _IDLE)
    for rows in units:
        waits[rows] = 1 - relative[rows] / np.fmax.reduce(relative[rows])
    return _at_times(case, waits, units, Signal.BUSY, "busy while its peers wait for it", "")


def _at_times(
    case: Case, rows: Matrix, units: Sequence[NDArray[np.intp]], signal: Signal, what: str, why: str
) -> Verdict | None:
    """Abstain if the lowest worker of each block is, on average, far below the others of its unit."""
    lacking = np.where(np.isfinite(rows), 0.0, np.nan)
    for members in units:
        ordered = np.sort(rows[members], axis=0)
        lack = median(ordered[1:].T) - ordered[:1]
        lacking[members] = np.where(rows[members] == ordered[:1], lack, lacking[members])
    loss = float(mean(np.fmax.reduce(lacking)[None, :])[0])
    if not loss >= _LEAST_LOSS:
        return None
    own = mean(lacking)
    names, who = case.named(own >= 0.5 * own.max())
    why = f"{who}: at times {what}, in total {loss:.0%} of the time{why}"
    item = Evidence(text=why, metric=signal.value, value=loss, expected=0.0, workers=names)
    return case.verdict(
        Cause.INCONCLUSIVE, 0.0, kind=UNEXPLAINED, roles=names, evidence=(item,), why_not=(why,)
    )


def _all_slower(case: Case, inside: NDArray[np.bool_]) -> Verdict | None:
    """Find jobs in which all workers do less, on average, than at their best pace."""
    util = case.series.get(Metric.UTIL)
    spins = True if util is None else median(util.T) >= _SPINS
    counted = case.phases.active | (inside & spins)
    found, _ = blocks(case.series, counted)
    signal = _first_used(found, (Signal.WORK, Signal.BUSY, Signal.POWER), _IDLE)
    if signal is None:
        return None
    change = _relative(found[signal]) * (_OF_POWER if signal is Signal.POWER else 1.0)
    link = _first_used(found, (Signal.NVLINK, Signal.PCIE), max(_IDLE_LINK, 10 * case.series.step))
    if link is not None:
        # In samples of long steps, traffic is high when work is low. Only a change of both in the same
        # direction counts.
        other = _relative(found[link])
        both = np.sign(change) * np.minimum(np.abs(change), np.abs(other))
        change = np.where(np.isfinite(other), np.where(change * other > 0, both, 0.0), change)
    best = float(quantile(change[None, :], _BEST)[0])
    loss = 1 - (1 + float(mean(np.minimum(change, best)[None, :])[0])) / (1 + best)
    if not loss >= _LEAST_LOSS:
        return None
    why = f"all workers do {loss:.0%} less on average than at their best pace, for an unknown reason"
    item = Evidence(text=why, metric=signal.value, value=1 - loss, expected=1.0)
    return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=UNEXPLAINED, evidence=(item,), why_not=(why,))


def _first_used(found: dict[Signal, Matrix], signals: Sequence[Signal], least: float) -> Signal | None:
    """Return the first of these signals with a usual value above `least`."""
    return next((one for one in signals if one in found and middle(median(found[one].T)) > least), None)


def _relative(rows: Matrix) -> Matrix:
    """Return the relative difference between each block's median and the mean of these medians."""
    course = median(rows.T)
    return np.asarray(course / mean(course[None, :])[0] - 1)
