"""A job that as a whole does less than it did: since when, by how much, and what changed with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import segments
from slurm_gpu.diagnose.robust import Matrix, median, middle, sigma, smooth
from slurm_gpu.diagnose.signals import BLOCK_S, LEAST_BLOCKS, Signal

LINKS = (Signal.NVLINK, Signal.INFINIBAND, Signal.NETWORK, Signal.PCIE)
BY_STEPS = (*LINKS, Signal.POWER)
"""What tells of the pace where no activity of SMs is told."""
LEAST_TREND = 0.04
_LEAST_FALL = 5
"""Blocks: of bins of minutes two may hold a checkpoint each."""
_LEAST_TREND_OF_POWER = 0.015
"""Who waits takes half of the power of who computes: of what the pace falls power shows a part."""
_TREND_Z = 6.0
_STEPS_EVEN_OUT = 3
"""Blocks: over so long readings that hold one burst or two of a long step are what a link carries."""
_MOST_OF_IT = 0.75
_IDLE = 0.01
_HARDLY_USED = 10.0


@dataclass(frozen=True, slots=True)
class Trend:
    """Blocks [first, stop) in which the job as a whole does less than at its best: `fell`, a logarithm."""

    signal: Signal
    first: int
    stop: int
    fell: float
    best: tuple[int, int]

    def moved(self, rows: Matrix) -> Matrix:
        """Of each worker (n_workers,) by how much its own middle changed since then; NaN where untold."""
        return median(rows[:, self.first : self.stop]) - median(rows[:, slice(*self.best)])


def find_trend(case: Case) -> Trend | None:
    """By the signal that tells most of the pace, of those that were told; None where nothing fell."""
    for signal in (Signal.WORK, Signal.BUSY):
        job = case.job(signal)
        if job is not None and middle(job) > _IDLE:
            return _fall(case, signal, job)
    # Power tells little of the pace: whoever waits takes some as well. Each step sends as much as ever.
    for signal in (Signal.NVLINK, Signal.PCIE):
        job = case.job(signal)
        used = job is not None and middle(job) > max(_IDLE / 10, _HARDLY_USED * case.series.step)
        if used and job is not None and (found := _fall(case, signal, job)) is not None:
            return found
    # Of long steps a reading holds one or two, and of links no fall shows in that.
    job = case.job(Signal.POWER)
    return None if job is None else _fall(case, Signal.POWER, job, _LEAST_TREND_OF_POWER)


def _fall(case: Case, signal: Signal, job: Matrix, least_fall: float = LEAST_TREND) -> Trend | None:
    """The part of the time, begun at a change, in which the job falls clearest below what it did before.

    Before and then are told by their middles: an evaluation is neither how it trained before, nor an end of
    what began. The part may hold several levels, as steps that a reading holds more or fewer of make them.
    """
    course = np.log(np.maximum(job, 1e-6))
    cuts = [part.start for part in segments(course)] + [len(course)]
    each_s = case.bins_of_block * case.series.width_s
    least_before, least = round(4 * BLOCK_S / each_s), max(_LEAST_FALL, round(case.rules.trend_s / each_s))
    found: tuple[float, Trend] | None = None
    for first in cuts[1:-1]:
        before = _known(course[:first])
        if before.size < max(least_before, LEAST_BLOCKS):
            continue
        usual = float(np.median(before))
        for stop in (cut for cut in cuts if cut >= first + least):
            then = _known(course[first:stop])
            if then.size < least or float(np.mean(then < usual - least_fall / 2)) < _MOST_OF_IT:
                continue
            fell = float(np.median(then)) - usual
            error = np.hypot(*(sigma(part) / np.sqrt(part.size) for part in (before, then)))
            z = -fell / max(error, least_fall / _TREND_Z)
            if fell <= -least_fall and z >= _TREND_Z and (found is None or z > found[0]):
                found = z, Trend(signal, first, stop, fell, (0, first))
    return None if found is None else found[1]


def _known(row: Matrix) -> Matrix:
    return row[np.isfinite(row)]


def changed(case: Case, signal: Signal, trend: Trend) -> float | None:
    """Of the job as a whole: a difference of fractions (util, cpu), else a logarithm; None where untold."""
    job = case.job(signal)
    if job is None:
        return None
    n = _STEPS_EVEN_OUT if signal in LINKS else 1
    now, then = _level(job, trend.first, trend.stop, n), _level(job, *trend.best, n)
    if not (np.isfinite(now) and np.isfinite(then)):
        return None
    if signal in (Signal.UTIL, Signal.CPU):
        return now - then
    if not then > max(1e-3, _HARDLY_USED * case.series.step):
        return None  # a link that the job hardly uses: rounding would be the answer
    return float(np.log(max(now, 1e-6) / then))


def _level(row: Matrix, first: int, stop: int, n: int) -> float:
    """The middle, of means over `n` blocks each."""
    part = row[first:stop]
    return middle(smooth(part[None, :], n)[0] if len(part) >= 2 * n else part)
