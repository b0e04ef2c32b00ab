"""Find when and by how much all workers became slower, and which other values changed at the same time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import segments
from slurm_gpu.diagnose.robust import Matrix, median, middle, sigma, smooth
from slurm_gpu.diagnose.signals import BLOCK_S, LEAST_BLOCKS, Signal

LINKS = (Signal.NVLINK, Signal.INFINIBAND, Signal.NETWORK, Signal.PCIE)
# Signals that show the pace of steps if SM activity is unknown.
BY_STEPS = (*LINKS, Signal.POWER)
LEAST_TREND = 0.04
# Minimum fall, as a logarithm, at which a job does not count as healthy even if the fall is recent.
_GREAT_FALL = 0.1
# Minimum length of a fall, in blocks. If bins are minutes long, two of them may each contain a checkpoint.
_LEAST_FALL = 5
# A waiting GPU draws half the power of a computing GPU, so power falls less than the pace.
_LEAST_TREND_OF_POWER = 0.015
_TREND_Z = 6.0
# Minimum z of a fall that only makes the verdict inconclusive instead of healthy.
_DOUBTFUL_Z = 3.0
# Number of blocks in a mean that represents a link's traffic even if each sample contains only one or two
# bursts of long steps.
_STEPS_EVEN_OUT = 3
_MOST_OF_IT = 0.75
_IDLE = 0.01
_BARELY_USED = 10.0


@dataclass(frozen=True, slots=True)
class Trend:
    """The blocks [first, stop) in which the job does less than in its best period, `best`.

    `fell` is the logarithm of the ratio, below 0.
    """

    signal: Signal
    first: int
    stop: int
    fell: float
    best: tuple[int, int]

    def moved(self, rows: Matrix) -> Matrix:
        """Return the change of each worker's median (n_workers,) since the best period; NaN if unknown."""
        return median(rows[:, self.first : self.stop]) - median(rows[:, slice(*self.best)])

    def error(self, rows: Matrix) -> Matrix:
        """Return the standard error of `moved` (n_workers,); NaN if unknown."""
        now, then = rows[:, self.first : self.stop], rows[:, slice(*self.best)]
        return np.array([np.hypot(_error(a), _error(b)) for a, b in zip(now, then, strict=True)])


def find_trend(case: Case) -> Trend | None:
    """Find a slowdown by the best available signal of the pace of steps; return None if there is none."""
    least = _least_blocks(case)
    for signal in (Signal.WORK, Signal.BUSY):
        job = case.job(signal)
        if job is not None and middle(job) > _IDLE:
            return _fall(case, signal, job, least)
    # Power is a weak signal of the pace, since waiting also draws power. Traffic per step is constant.
    for signal in (Signal.NVLINK, Signal.PCIE):
        job = case.job(signal)
        used = job is not None and middle(job) > max(_IDLE / 10, _BARELY_USED * case.series.step)
        if used and job is not None and (found := _fall(case, signal, job, least)) is not None:
            return found
    # If steps are long, a sample contains one or two of them, which hides a fall in link traffic.
    job = case.job(Signal.POWER)
    return None if job is None else _fall(case, Signal.POWER, job, least, _LEAST_TREND_OF_POWER)


def recent_fall(case: Case) -> Trend | None:
    """Find a large fall in tensor work that lasts until the end, but is not clear enough for `find_trend`.

    The fall may be too short, or work may vary greatly because each sample contains only one or two steps.
    """
    job = case.job(Signal.WORK)
    if job is None or not middle(job) > _IDLE:
        return None
    for n in (1, _STEPS_EVEN_OUT):
        course = smooth(job[None, :], n)[0]
        found = _fall(case, Signal.WORK, course, LEAST_BLOCKS, _GREAT_FALL, _DOUBTFUL_Z, until_end=True)
        if found is not None:
            return replace(found, first=n * found.first, stop=n * found.stop, best=(0, n * found.best[1]))
    return None


def _least_blocks(case: Case) -> int:
    """Return the minimum number of blocks of a slowdown."""
    return max(_LEAST_FALL, round(case.rules.trend_s / (case.bins_of_block * case.series.width_s)))


def _fall(
    case: Case,
    signal: Signal,
    job: Matrix,
    least: int,
    least_fall: float = LEAST_TREND,
    least_z: float = _TREND_Z,
    *,
    until_end: bool = False,
) -> Trend | None:
    """Find the period with the clearest fall, compared with the time before it.

    The period begins at a change of level. It may contain several levels, since samples contain different
    numbers of steps. Medians of both times are compared, so that an evaluation counts neither as usual
    training nor as the end of the slowdown. With `until_end`, only periods that last until the end count.
    """
    course = np.log(np.maximum(job, 1e-6))
    cuts = [part.start for part in segments(course)] + [len(course)]
    stops = [cut for cut in cuts if not (until_end and np.isfinite(course[cut:]).any())]
    least_before = round(4 * BLOCK_S / (case.bins_of_block * case.series.width_s))
    found: tuple[float, Trend] | None = None
    for first in cuts[1:-1]:
        before = _known(course[:first])
        if before.size < max(least_before, LEAST_BLOCKS):
            continue
        usual = float(np.median(before))
        for stop in (cut for cut in stops if cut >= first + least):
            then = _known(course[first:stop])
            if then.size < least or float(np.mean(then < usual - least_fall / 2)) < _MOST_OF_IT:
                continue
            fell = float(np.median(then)) - usual
            error = np.hypot(*(sigma(part) / np.sqrt(part.size) for part in (before, then)))
            z = -fell / max(error, least_fall / least_z)
            if fell <= -least_fall and z >= least_z and (found is None or z > found[0]):
                found = z, Trend(signal, first, stop, fell, (0, first))
    return None if found is None else found[1]


def _error(row: Matrix) -> float:
    """Return the standard error of the median of a row."""
    return float(1.25 * sigma(row) / np.sqrt(max(np.isfinite(row).sum(), 1)))


def _known(row: Matrix) -> Matrix:
    return row[np.isfinite(row)]


def change_since(case: Case, signal: Signal, trend: Trend) -> float | None:
    """Return the change of a signal, over all workers, since the best period; None if unknown.

    The result is a difference of fractions for util and cpu, and the logarithm of a ratio otherwise.
    """
    job = case.job(signal)
    if job is None:
        return None
    n = _STEPS_EVEN_OUT if signal in LINKS else 1
    now, then = _level(job, trend.first, trend.stop, n), _level(job, *trend.best, n)
    if not (np.isfinite(now) and np.isfinite(then)):
        return None
    if signal in (Signal.UTIL, Signal.CPU):
        return now - then
    if not then > max(1e-3, _BARELY_USED * case.series.step):
        # The job hardly uses this link, so rounding would dominate.
        return None
    return float(np.log(max(now, 1e-6) / then))


def _level(row: Matrix, first: int, stop: int, n: int) -> float:
    """Return the median of the blocks [first, stop), after averaging every `n` blocks."""
    part = row[first:stop]
    return middle(smooth(part[None, :], n)[0] if len(part) >= 2 * n else part)
