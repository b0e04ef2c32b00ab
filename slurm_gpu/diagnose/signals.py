"""How far each worker lies from its peers, in each signal, and since when.

In synchronous training all workers take equally long for a step, so what tells them apart is what fills it:

- *busy*: the time that the SMs are active. Who is behind has it higher, since it waits for nobody.
- *work*: the tensor pipe's cycles × the clock, what was computed per second. Equal work per step makes it
  equal, whatever the clocks: a slow GPU does as much as its peers. Only who has more to do has it higher.
- *clock*, *throttle*: the hardware's own word.
- *util*: who waits for peers spins, and is at 100 %; who waits for data is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.changes import split
from slurm_gpu.diagnose.metric import BACKGROUND, Metric
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median, middle, quantile, smooth
from slurm_gpu.diagnose.series import Series

BLOCK_S = 15.0
"""What is compared are means over so long: clocks that are 2 s apart, and steps, do not show in them."""
LEAST_BLOCKS = 3
_LEAST_PAST_S = 120.0
"""What lasted shorter and is over does not matter."""
_KNOWN = 0.5
"""Of a block's bins: a mean of fewer is one of another moment than its peers'."""
_CLEAR_CHANGE_Z = 6.0
_ROUNDED = 0.29
"""Standard deviation of what is rounded to 1."""


class Signal(StrEnum):
    """What is compared with peers."""

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
    """Whether trouble makes it higher: its peers are then those in the lower half."""
    differs_by: float
    """Spread that is never less between peers that are alike: GPUs are not equal."""
    ratio: bool = True
    """Compared as the logarithm of the ratio, else as the difference."""
    in_bursts: bool = False
    """Once a step: how many of them a reading holds goes by when its node reads."""


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
    """Of each worker (n_workers,), in the part of the time in which it lies farthest from its peers.

    `level`: logarithm of the ratio to peers, or the difference (throttle, util, cpu: fractions of 1); `z`:
    over the spread of the peers; NaN where not told. `first` and `stop`: blocks [first, stop) of that part.
    `own`: the signal's own level then.
    """

    signal: Signal
    level: Matrix
    z: Matrix
    apart: Matrix
    """As `level`, but always to peers: that of who began to differ is to its own place among them."""
    first: NDArray[np.intp]
    stop: NDArray[np.intp]
    own: Matrix
    ratios: Matrix
    """(n_workers, n_blocks), of which the levels are medians."""

    def up(self, least: float, z: float) -> NDArray[np.bool_]:
        """Who lies above its peers."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self.level >= least) & (self.z >= z))

    def down(self, least: float, z: float) -> NDArray[np.bool_]:
        """Who lies below its peers."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self.level <= -least) & (self.z <= -z))

    def within(self, row: int, first: int, stop: int) -> float:
        """The level of one worker in other blocks; NaN where not told."""
        return middle(self.ratios[row, first:stop])


def blocks(series: Series, active: NDArray[np.bool_]) -> tuple[dict[Signal, Matrix], int]:
    """Each signal while the job computes, in blocks (n_workers, n_blocks), and how many bins make a block."""
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


def _background(signal: Signal, rows: Matrix) -> bool:
    """Whether no node's network carries more than what is not the job's."""
    return signal in (Signal.NETWORK, Signal.INFINIBAND) and not (median(rows) >= BACKGROUND).any()


def deviation(
    signal: Signal, rows: Matrix, groups: Groups, step: float = 0.0, block_s: float = BLOCK_S
) -> Deviation:
    """Compare every worker with those of its group; `rows` as `blocks` makes them, rounded to `step`."""
    kind = _coarse(_KINDS[signal], rows, step)
    ratios = _to_peers(rows, groups, kind)
    first, stop = _episodes(ratios, kind, block_s)
    columns = np.arange(ratios.shape[1])
    inside = (columns >= first[:, None]) & (columns < stop[:, None])
    own_part = np.where(inside, ratios, np.nan)
    # Of readings that hold two bursts or three the mean is what it carries, and the middle is either.
    middle_of = _mean if kind.in_bursts else median
    level = middle_of(own_part)
    whole = middle_of(ratios)
    errors = _standard_error(own_part, level, kind)
    apart = level.copy()
    z = np.full(len(rows), np.nan)
    for members in groups.members():
        centre, spread = _alike(whole[members], kind)
        level[members] -= centre
        apart[members] = level[members]
        z[members] = level[members] / np.hypot(max(spread, kind.differs_by), errors[members])
        for row in members[(first[members] > 0) | (stop[members] < ratios.shape[1])]:
            change, sure = _changed(ratios, int(row), members, inside[row], kind, float(errors[row]))
            if abs(sure) > abs(z[row]) and sure * level[row] > 0:
                level[row], z[row] = change, sure
            if not _lasts(own_part[row] - centre, float(level[row])):
                z[row] = 0.0
            elif kind.ratio and (usual := _wander(ratios[members], int(first[row]), int(stop[row]))) > 0:
                least = max(spread, kind.differs_by)
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
    """Whether it is so for as many blocks as are asked for, and not in the middle of fewer alone."""
    with np.errstate(invalid="ignore"):
        return int((part * np.sign(level) >= 0.5 * abs(level)).sum()) >= LEAST_BLOCKS


def _wander(ratios: Matrix, first: int, stop: int) -> float:
    """How far peers strayed from their own places for as long before: a standard deviation; 0 if untold.

    Where a reading holds about a step, who reads when has more of it for minutes, and then less.
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


def _mean(rows: Matrix) -> Matrix:
    """Of each row (n_rows,), leaving out gaps; NaN of gaps alone."""
    good = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        found: Matrix = np.where(good, rows, 0.0).sum(axis=1) / good.sum(axis=1)
    return found


def _coarse(kind: _SignalKind, rows: Matrix, step: float) -> _SignalKind:
    """Peers that are alike differ by what rounding makes of them as well: much, where values are small."""
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
    """How far a worker moved from its own place among its peers, and in spreads of how the peers moved.

    GPUs differ from each other a little for ever: against its own past even a small change is clear.
    """
    moved = median(ratios[np.ix_(members, inside)]) - median(ratios[np.ix_(members, ~inside)])
    mine = np.flatnonzero(members == row)[0]
    others = np.delete(moved, mine)
    centre, spread = _alike(others, kind)
    change = float(moved[mine] - centre)
    return change, float(change / np.hypot(max(spread, kind.differs_by), error if kind.ratio else 0.0))


def _to_peers(rows: Matrix, groups: Groups, kind: _SignalKind) -> Matrix:
    """Each block relative to the level of the group's better half in the same block."""
    ratios = np.full(rows.shape, np.nan)
    for members in groups.members():
        group = rows[members]
        # In a small group the better one is what the others could be.
        # Of a larger one the better half's middle: half of them, such as one node of two, may be off.
        share = 0.25 if len(members) >= 4 else 0.0
        reference = quantile(group.T, share if kind.worse_up else 1.0 - share)
        if kind.ratio:
            usual = middle(reference)
            if not usual > 0:
                continue  # a link that nobody uses tells nothing
            least = 0.02 * usual
            with np.errstate(invalid="ignore"):
                ratios[members] = np.log(np.maximum(group, least) / np.maximum(reference, least))
        else:
            ratios[members] = group - reference
    return ratios


def _alike(levels: Matrix, kind: _SignalKind) -> tuple[float, float]:
    """Centre and spread of the peers that are well, where up to half of them are not.

    Of a normal distribution the better half has its median 0.674 σ beside the centre, and half of it lies
    within 0.399 σ of that: so both follow from that half alone.
    """
    known = levels[np.isfinite(levels)]
    if known.size < 4:
        return 0.0, 0.0
    centre = float(np.median(known))
    half = known[known <= centre] if kind.worse_up else known[known >= centre]
    within = float(np.median(half))
    spread = float(np.median(np.abs(half - within))) / 0.399
    return within + (0.674 if kind.worse_up else -0.674) * spread, spread


def _standard_error(part: Matrix, level: Matrix, kind: _SignalKind) -> Matrix:
    counts = np.isfinite(part).sum(axis=1)
    if kind.ratio:
        # Not by the median: readings that hold two steps or three scatter between these alone.
        spread: Matrix = np.sqrt(_mean((part - level[:, None]) ** 2))
    else:
        spread = MAD_TO_SIGMA * median(np.abs(part - level[:, None]))
    error: Matrix = 1.25 * spread / np.sqrt(np.maximum(counts, 1))
    return np.where(np.isfinite(error), error, 0.0)


def _episodes(ratios: Matrix, kind: _SignalKind, block_s: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of each row the blocks [first, stop) between clear changes that lie farthest from the peers."""
    n_rows, n = ratios.shape
    least_past = max(LEAST_BLOCKS, round(_LEAST_PAST_S / block_s))
    first, stop = np.zeros(n_rows, dtype=np.intp), np.full(n_rows, n, dtype=np.intp)
    found = split(ratios, LEAST_BLOCKS)
    clear = (found.z >= _CLEAR_CHANGE_Z) & (np.abs(found.after - found.before) >= 2 * kind.differs_by)
    for row in np.flatnonzero(clear):
        at = int(found.at[row])
        low, high = (at, n) if abs(found.after[row]) >= abs(found.before[row]) else (0, at)
        # It may have ended, or begun, within that part as well.
        inner = split(ratios[row : row + 1, low:high], LEAST_BLOCKS)
        if inner.z[0] >= _CLEAR_CHANGE_Z and abs(inner.after[0] - inner.before[0]) >= 2 * kind.differs_by:
            middle_at = low + int(inner.at[0])
            later = abs(inner.after[0]) >= abs(inner.before[0])
            low, high = (middle_at, high) if later else (low, middle_at)
        least = least_past if high <= n - LEAST_BLOCKS or kind.in_bursts else LEAST_BLOCKS
        if np.isfinite(ratios[row, low:high]).sum() < least:
            continue  # it was short and is over, or may be by chance
        first[row], stop[row] = low, high
    return first, stop


def all_deviations(
    signals: dict[Signal, Matrix], groups: Groups, step: float, block_s: float
) -> dict[Signal, Deviation]:
    """Of every signal that was told."""
    return {signal: deviation(signal, rows, groups, step, block_s) for signal, rows in signals.items()}
