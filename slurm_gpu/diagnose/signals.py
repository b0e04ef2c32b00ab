"""Measure how far each worker deviates from its peers in each signal, and since when.

In synchronous training, a step takes equally long on all workers, which differ only in their activity within
the step:

- *busy*: the time in which the SMs are active. A slow worker has a higher value, because it does not wait.

- *work*: the tensor pipe's active share × the clock rate, a measure of computation per second. With equal
  work per step, the values of all workers are equal even if clocks differ, because a slow GPU does as much as
  its peers. Only more work raises the value.

- *clock*, *throttle*: reported by the hardware.

- *util*: a worker that waits for peers spins at 100 %; one that waits for data does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.changes import segments, split
from slurm_gpu.diagnose.metric import BACKGROUND, Metric
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, mean, median, middle, quantile, smooth
from slurm_gpu.diagnose.series import Series

# Duration of the blocks whose means are compared; the means hide single steps and clock offsets of 2 s.
BLOCK_S = 15.0
LEAST_BLOCKS = 3
# Shorter deviations that have ended are ignored.
_LEAST_PAST_S = 120.0
# Minimum share of a block's bins with values: a mean of fewer values may describe another moment than the
# peers' means.
_KNOWN = 0.5
_CLEAR_CHANGE_Z = 6.0
# Standard deviation of the error of rounding to whole numbers.
_ROUNDED = 0.29


class Signal(StrEnum):
    """A quantity in which workers are compared with their peers."""

    BUSY = "busy"
    WORK = "work"
    POWER = "power"
    CLOCK = "clock"
    THROTTLE = "throttle"
    UTIL = "util"
    NVLINK = "nvlink"
    PCIE = "pcie"
    INFINIBAND = "infiniband"
    NETWORK = "network"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class _SignalKind:
    worse_up: bool
    """Whether a fault raises the signal. If so, the reference is the lower half of the group."""
    differs_by: float
    """Minimum standard deviation between equal peers, since GPUs are not identical."""
    ratio: bool = True
    """Whether logarithms of ratios are compared, rather than differences."""
    in_bursts: bool = False
    """Whether the signal has one burst per step, so the number of bursts differs between samples."""


_KINDS = {
    Signal.BUSY: _SignalKind(True, 0.006),
    Signal.WORK: _SignalKind(True, 0.008),
    Signal.POWER: _SignalKind(True, 0.012),
    Signal.CLOCK: _SignalKind(False, 0.006),
    Signal.THROTTLE: _SignalKind(True, 0.02, ratio=False),
    Signal.UTIL: _SignalKind(False, 0.01, ratio=False),
    Signal.NVLINK: _SignalKind(False, 0.02, in_bursts=True),
    Signal.PCIE: _SignalKind(False, 0.03, in_bursts=True),
    Signal.INFINIBAND: _SignalKind(False, 0.02, in_bursts=True),
    Signal.NETWORK: _SignalKind(False, 0.04, in_bursts=True),
    Signal.CPU: _SignalKind(True, 0.05, ratio=False),
}
_DIRECT = {
    Signal.BUSY: Metric.SM_ACTIVE,
    Signal.POWER: Metric.POWER,
    Signal.CLOCK: Metric.SM_CLOCK,
    Signal.THROTTLE: Metric.THROTTLE,
    Signal.UTIL: Metric.UTIL,
    Signal.NVLINK: Metric.NVLINK,
    Signal.PCIE: Metric.PCIE,
    Signal.INFINIBAND: Metric.INFINIBAND,
    Signal.NETWORK: Metric.NETWORK,
    Signal.CPU: Metric.CPU,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The deviation of each worker (n_workers,) in the period in which it deviates most from its peers.

    `level` is the logarithm of the ratio to the peers; for throttle, util and cpu, it is the difference as a
    fraction of 1. `z` is `level` in standard deviations of the peers; NaN if unknown. The period consists of
    the blocks [first, stop). `own` is the median of the signal itself in the period.
    """

    signal: Signal
    level: Matrix
    z: Matrix
    apart: Matrix
    """The deviation relative to the peers.

    In contrast, `level` is relative to the worker's own past if the worker changed.
    """
    first: NDArray[np.intp]
    stop: NDArray[np.intp]
    own: Matrix
    ratios: Matrix
    """The deviation in each block (n_workers, n_blocks). A level is the median of several blocks."""

    def above(self, least: float, z: float) -> NDArray[np.bool_]:
        """Mark workers above their peers by at least `least`, and by at least `z` standard deviations."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self.level >= least) & (self.z >= z))

    def below(self, least: float, z: float) -> NDArray[np.bool_]:
        """Mark workers below their peers by at least `least`, and by at least `z` standard deviations."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self.level <= -least) & (self.z <= -z))

    def within(self, row: int, first: int, stop: int) -> float:
        """Return the level of one worker in the blocks [first, stop); NaN if unknown."""
        return middle(self.ratios[row, first:stop])


def blocks(series: Series, active: NDArray[np.bool_]) -> tuple[dict[Signal, Matrix], int]:
    """Return the means of each signal in blocks (n_workers, n_blocks), and the number of bins per block.

    Only bins in which the job computes count.
    """
    n = max(1, round(BLOCK_S / series.width_s))
    if series.n_bins < n * LEAST_BLOCKS:
        n = max(1, series.n_bins // LEAST_BLOCKS)
    tensor, clock = series.get(Metric.TENSOR), series.get(Metric.SM_CLOCK)
    found = {
        signal: matrix for signal, metric in _DIRECT.items() if (matrix := series.get(metric)) is not None
    }
    if tensor is not None:
        found[Signal.WORK] = tensor if clock is None else tensor * clock
    smoothed = {
        signal: smooth(np.where(active, matrix, np.nan), n, _KNOWN) for signal, matrix in found.items()
    }
    return {signal: rows for signal, rows in smoothed.items() if not _background(signal, rows)}, n


def without_common_changes(rows: Matrix, groups: Groups) -> Matrix:
    """Remove changes of level that all groups have in common from the blocks of a signal.

    If a job switches to larger batches halfway, the median of a worker over time is the level before or after
    the switch, depending on which blocks are missing.
    """
    common = np.stack([median(rows[members].T) for members in groups.members()]).mean(axis=0)
    usual, steady = middle(common), rows.copy()
    for part in segments(common):
        if part.level > 0:
            steady[:, part.start : part.stop] *= usual / part.level
    return steady


def _background(signal: Signal, rows: Matrix) -> bool:
    """Return whether a network signal shows only background traffic on all nodes."""
    return signal in (Signal.NETWORK, Signal.INFINIBAND) and not (median(rows) >= BACKGROUND).any()


def deviation(
    signal: Signal, rows: Matrix, groups: Groups, step: float = 0.0, block_s: float = BLOCK_S
) -> Deviation:
    """Compare each worker with its group; `rows` come from `blocks` and are rounded to `step`."""
    kind = _coarse(_KINDS[signal], rows, step)
    ratios = _to_peers(rows, groups, kind)
    first, stop = _episodes(ratios, kind, block_s)
    columns = np.arange(ratios.shape[1])
    inside = (columns >= first[:, None]) & (columns < stop[:, None])
    own_part = np.where(inside, ratios, np.nan)
    # If samples contain two or three bursts, their mean is the traffic, but their median is the traffic of
    # two or of three bursts.
    middle_of = mean if kind.in_bursts else median
    level = middle_of(own_part)
    whole = middle_of(ratios)
    errors = _standard_error(own_part, level, kind)
    apart = level.copy()
    z = np.full(len(rows), np.nan)
    alike = _between_peers(whole, groups, kind)
    for members in groups.members():
        centre, std = _healthy_centre(whole[members], kind)
        std = max(std, alike)
        level[members] -= centre
        apart[members] = level[members]
        z[members] = level[members] / np.hypot(max(std, kind.differs_by), errors[members])
        for row in members[(first[members] > 0) | (stop[members] < ratios.shape[1])]:
            change, sure = _changed(ratios, int(row), members, inside[row], kind, float(errors[row]))
            if abs(sure) > abs(z[row]) and sure * level[row] > 0:
                level[row], z[row] = change, sure
            if not _lasts(own_part[row] - centre, float(level[row])):
                z[row] = 0.0
            elif kind.ratio and (usual := _wander(ratios[members], int(first[row]), int(stop[row]))) > 0:
                least = max(std, kind.differs_by)
                z[row] *= least / np.hypot(least, usual)
    return Deviation(
        signal=signal,
        level=level,
        z=z,
        apart=apart,
        first=first,
        stop=stop,
        own=median(np.where(inside, rows, np.nan)),
        ratios=ratios,
    )


def _lasts(part: Matrix, level: float) -> bool:
    """Return whether enough individual blocks show the deviation."""
    with np.errstate(invalid="ignore"):
        return int((part * np.sign(level) >= 0.5 * abs(level)).sum()) >= LEAST_BLOCKS


def _wander(ratios: Matrix, first: int, stop: int) -> float:
    """Return how far peers deviated from their own medians in earlier periods of the same length.

    The result is a standard deviation; 0 if unknown. If a sample lasts about one step, a worker's samples may
    cover more of the busy part for some minutes, and less of it afterwards, depending on when its counters
    are read.
    """
    n = stop - first
    if first < 2 * n:
        return 0.0
    past = ratios[:, :first] - median(ratios[:, :first])[:, None]
    good = np.isfinite(past)
    sums = np.cumsum(np.pad(np.where(good, past, 0.0), ((0, 0), (1, 0))), axis=1)
    counts = np.cumsum(np.pad(good, ((0, 0), (1, 0))), axis=1)
    number = counts[:, n:] - counts[:, :-n]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(number >= 0.5 * n, (sums[:, n:] - sums[:, :-n]) / number, np.nan)
    strayed = float(quantile(np.abs(means).reshape(1, -1), 0.9)[0])
    return strayed / 1.645 if np.isfinite(strayed) else 0.0


def _coarse(kind: _SignalKind, rows: Matrix, step: float) -> _SignalKind:
    """Raise the minimum standard deviation between equal peers to that of the rounding error."""
    usual = middle(median(rows)) if kind.ratio else 1.0
    if not (step > 0 and usual > 0):
        return kind
    return replace(kind, differs_by=max(kind.differs_by, _ROUNDED * step / usual))


def _changed(
    ratios: Matrix,
    row: int,
    members: NDArray[np.intp],
    inside: NDArray[np.bool_],
    kind: _SignalKind,
    error: float,
) -> tuple[float, float]:
    """Return how far a worker changed relative to its peers, also in standard deviations.

    GPUs always differ slightly, but a comparison with the worker's own past reveals even a small change.
    """
    moved = median(ratios[np.ix_(members, inside)]) - median(ratios[np.ix_(members, ~inside)])
    mine = np.flatnonzero(members == row)[0]
    others = np.delete(moved, mine)
    centre, std = _healthy_centre(others, kind)
    change = float(moved[mine] - centre)
    return change, float(change / np.hypot(max(std, kind.differs_by), error if kind.ratio else 0.0))


def _to_peers(rows: Matrix, groups: Groups, kind: _SignalKind) -> Matrix:
    """Return the values of each block relative to the better half of the group in that block."""
    ratios = np.full(rows.shape, np.nan)
    for members in groups.members():
        group = rows[members]
        # In a small group, the best member is the reference. In a larger group, the median of the better half
        # is the reference, since half of the members, such as one node of two, may be at fault.
        share = 0.25 if len(members) >= 4 else 0.0
        reference = quantile(group.T, share if kind.worse_up else 1.0 - share)
        if kind.ratio:
            usual = middle(reference)
            if not usual > 0:
                # Values of an unused link are meaningless.
                continue
            least = 0.02 * usual
            with np.errstate(invalid="ignore"):
                ratios[members] = np.log(np.maximum(group, least) / np.maximum(reference, least))
        else:
            ratios[members] = group - reference
    return ratios


def _healthy_centre(levels: Matrix, kind: _SignalKind) -> tuple[float, float]:
    """Return the centre and standard deviation of healthy peers, although up to half may be unhealthy.

    Both results are computed from the better half only. In a normal distribution, its median is 0.674 σ from
    the centre, and half of its values lie within 0.399 σ of this median.
    """
    known = levels[np.isfinite(levels)]
    if known.size < 4:
        return 0.0, 0.0
    centre = float(np.median(known))
    half = known[known <= centre] if kind.worse_up else known[known >= centre]
    within = float(np.median(half))
    std = float(np.median(np.abs(half - within))) / 0.399
    return within + (0.674 if kind.worse_up else -0.674) * std, std


def _between_peers(levels: Matrix, groups: Groups, kind: _SignalKind) -> float:
    """Return the standard deviation between healthy peers of all groups; 0 if there is only one group.

    The members of a single group's better half are often alike by chance. Only activity, work and power are
    pooled: the thresholds of clocks and links are larger than this error, and shares of time differ between
    groups.
    """
    if not (kind.ratio and kind.worse_up):
        return 0.0
    several = [levels[members] for members in groups.members() if np.isfinite(levels[members]).sum() >= 4]
    if len(several) < 2:
        return 0.0
    return _healthy_centre(np.concatenate([group - middle(group) for group in several]), kind)[1]


def _standard_error(part: Matrix, level: Matrix, kind: _SignalKind) -> Matrix:
    counts = np.isfinite(part).sum(axis=1)
    if kind.ratio:
        # Use the mean, because samples that contain two or three steps have only two different values.
        std: Matrix = np.sqrt(mean((part - level[:, None]) ** 2))
    else:
        std = MAD_TO_SIGMA * median(np.abs(part - level[:, None]))
    error: Matrix = 1.25 * std / np.sqrt(np.maximum(counts, 1))
    return np.where(np.isfinite(error), error, 0.0)


def _episodes(ratios: Matrix, kind: _SignalKind, block_s: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the blocks [first, stop) in which each row deviates most, limited by clear changes of level."""
    n_rows, n = ratios.shape
    least_past = max(LEAST_BLOCKS, round(_LEAST_PAST_S / block_s))
    first, stop = np.zeros(n_rows, dtype=np.intp), np.full(n_rows, n, dtype=np.intp)
    found = split(ratios, LEAST_BLOCKS)
    clear = (found.z >= _CLEAR_CHANGE_Z) & (np.abs(found.after - found.before) >= 2 * kind.differs_by)
    for row in np.flatnonzero(clear):
        at = int(found.at[row])
        low, high = (at, n) if abs(found.after[row]) >= abs(found.before[row]) else (0, at)
        # The deviation may have begun or ended within this range.
        inner = split(ratios[row : row + 1, low:high], LEAST_BLOCKS)
        if inner.z[0] >= _CLEAR_CHANGE_Z and abs(inner.after[0] - inner.before[0]) >= 2 * kind.differs_by:
            middle_at = low + int(inner.at[0])
            later = abs(inner.after[0]) >= abs(inner.before[0])
            low, high = (middle_at, high) if later else (low, middle_at)
        least = least_past if high <= n - LEAST_BLOCKS or kind.in_bursts else LEAST_BLOCKS
        if np.isfinite(ratios[row, low:high]).sum() < least:
            # The deviation was short and has ended, or may be random.
            continue
        first[row], stop[row] = low, high
    return first, stop


def compute_deviations(
    signals: dict[Signal, Matrix], groups: Groups, step: float, block_s: float
) -> dict[Signal, Deviation]:
    """Compute the deviations of all signals."""
    return {signal: deviation(signal, rows, groups, step, block_s) for signal, rows in signals.items()}
