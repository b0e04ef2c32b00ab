"""Some have more to do than others: workers, stages, or whoever got the long sequences this time."""

from __future__ import annotations

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.hardware import LEAST_BUSY
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import MODELS
from slurm_gpu.diagnose.phases import held_s
from slurm_gpu.diagnose.robust import Matrix, median, middle, sigma, smooth
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.verdict import Cause, Evidence, Verdict

_LEAST_POWER, _GUESS = 0.04, 0.55
_STAGE_TIMES, _STAGE_TIMES_POWER = 1.12, 1.05
"""A first or last stage does some 10 % more for its embedding or its loss, and nobody minds.

Whoever waits for it takes half of the power of who computes.
"""
_STAGE_SPREADS = 4.0
_SEQUENCE_SPREAD = 0.03
"""Microbatches of one length take 2 to 3 % more or less, of which a mean over seconds shows a part."""
_SEQUENCE_CORRELATION = 0.8
_SEQUENCE_SPREAD_OF_POWER = 0.016
"""GPUs that do alike keep their places among each other to a per cent, in means over ten seconds."""
_READING_S = 10.0
_BUSY_ALL_THE_TIME = 0.95
_LATER, _LASTING = 4, 0.3
"""Readings: what is still there then does not come from what one step or the next holds."""


def heavier(case: Case) -> Verdict | None:
    """Workers that are busy longer because they do more; nobody is accused of it."""
    if Signal.WORK in case.deviations:
        signal = Signal.WORK
        with np.errstate(invalid="ignore"):
            more = case.level(Signal.WORK) >= 0.5 * case.level(Signal.BUSY)
        rows = case.up(Signal.BUSY, LEAST_BUSY, 5.0) & case.up(Signal.WORK, 0.02, 4.0) & more
        base = 0.85
    else:
        # Without the tensor pipe's word power is what tells of work.
        signal = Signal.POWER
        rows = case.up(Signal.POWER, _LEAST_POWER)
        if Signal.BUSY in case.deviations:
            rows &= case.up(Signal.BUSY, LEAST_BUSY, 5.0)
        # GPUs that do alike take up to a tenth more or less power for ever.
        base = 0.65 if Signal.BUSY in case.deviations or (rows & case.began(signal)).any() else _GUESS
    if not rows.any():
        return None
    since_s, until_s = case.span(signal, rows)
    told = [one for one in (Signal.WORK, Signal.BUSY, Signal.POWER, Signal.CLOCK) if one in case.deviations]
    names = tuple(worker.name for worker in case.workers(rows))
    return case.verdict(
        Cause.IMBALANCE,
        case.sure(signal, rows, base) if signal is Signal.WORK else base,
        kind="workers",
        roles=names,
        since_s=since_s,
        until_s=until_s,
        evidence=tuple(case.evidence(one, rows) for one in told),
    )


def stages(case: Case) -> Verdict | None:
    """One group of peers is busy and works more than each other group, which wait for it."""
    groups = case.groups
    if len(groups.names) < 2 or groups.source.startswith(MODELS):
        return None
    levels = {}
    for signal in (Signal.BUSY, Signal.WORK, Signal.POWER):
        rows = case.signals.get(signal)
        if rows is not None:
            levels[signal] = np.array([middle(median(rows[members])) for members in groups.members()])
    asked: list[Signal] = [one for one in (Signal.BUSY, Signal.WORK) if one in levels]
    asked = asked or list(levels)
    if not asked or any(not np.isfinite(levels[signal]).all() for signal in asked):
        return None
    busiest = int(np.argmax(levels[asked[-1]]))
    evidence = []
    for signal in asked:
        others = np.delete(levels[signal], busiest)
        own, usual = float(levels[signal][busiest]), float(np.median(others))
        least = _STAGE_TIMES if signal is not Signal.POWER else _STAGE_TIMES_POWER
        apart = _apart(case, signal, busiest, others)
        if not usual > 0 or own / usual < least or own - usual < _STAGE_SPREADS * apart:
            return None
        text = f"{groups.names[busiest]}: {own / usual:.2f} times the {signal.value} of the other groups"
        evidence.append(Evidence(text=text, metric=signal.value, value=own, expected=usual))
    return case.verdict(
        Cause.IMBALANCE,
        0.75 if Signal.WORK in asked else 0.55,
        kind="pipeline stage",
        roles=(groups.names[busiest],),
        evidence=tuple(evidence),
    )


def _apart(case: Case, signal: Signal, busiest: int, others: Matrix) -> float:
    """How far groups that do as much lie apart: as the others do, and as their members would make them."""
    members = case.groups.members()[busiest]
    own = median(case.signals[signal][members])
    return float(np.hypot(others.std(), 1.25 * sigma(own) / np.sqrt(len(members))))


def sequences(case: Case) -> Verdict | None:
    """Who has most to do changes all the time: busy and work vary together, and on each worker by itself.

    Within a node and a group alone, where all clocks are one. Noise of measurements is each one's own, and
    would not vary together.
    """
    busy, tensor = case.series.get(Metric.SM_ACTIVE), case.series.get(Metric.TENSOR)
    if busy is None or tensor is None:
        return _sequences_by_power(case)
    one, other = (_own_course(case, matrix) for matrix in (busy, tensor))
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < 100:
        return None
    a, b = one[both], other[both]
    spread = float(min(a.std(), b.std()))
    if spread < _SEQUENCE_SPREAD:
        return None
    correlation = float(np.corrcoef(a, b)[0, 1])
    if not correlation >= _SEQUENCE_CORRELATION:
        return None
    text = f"what workers do varies by {spread:.0%}, each for itself, in SM activity and tensor work alike"
    return case.verdict(
        Cause.IMBALANCE,
        0.7,
        kind="sequence",
        evidence=(
            Evidence(text=text, metric="tensor", value=spread, expected=0.02),
            Evidence(
                text=f"both vary together (correlation {correlation:.2f})",
                metric="busy × work",
                value=correlation,
                expected=0.0,
            ),
        ),
    )


def _sequences_by_power(case: Case) -> Verdict | None:
    """Without SM activity: power, of which who waits takes half, and which is steady on GPUs that do alike.

    Each reading differs, and by itself: temperature and loaders that are behind come and go slowly.
    """
    power, util = case.series.get(Metric.POWER), case.job(Signal.UTIL)
    if power is None or util is None or not middle(util) >= _BUSY_ALL_THE_TIME:
        return None
    n = max(1, round(max(_READING_S, held_s(case.series)) / case.series.width_s))
    own = smooth(_own_course(case, power), n)
    own = own - median(own)[:, None]
    spread = middle(np.array([sigma(row) for row in own]))
    later = own[:, _LATER:] * own[:, :-_LATER]
    both = np.isfinite(later)
    if both.sum() < 100 or not spread >= _SEQUENCE_SPREAD_OF_POWER:
        return None
    lasting = float(later[both].mean() / (own[np.isfinite(own)] ** 2).mean())
    if abs(lasting) > _LASTING:
        return None
    text = f"the power of each varies by {spread:.1%}, for itself and in each reading, while all are busy"
    verdict = case.verdict(
        Cause.IMBALANCE,
        0.55,
        kind="sequence",
        evidence=(Evidence(text=text, metric="power", value=spread, expected=0.01),),
    )
    return verdict.limited("without SM activity it is told by power alone", most=0.55)


def _own_course(case: Case, matrix: Matrix) -> Matrix:
    """Relative to the worker's own level, and to that of its node's peers at the same time."""
    own = np.full(matrix.shape, np.nan)
    for node in case.series.nodes:
        there = case.series.on(node)
        for group in range(len(case.groups.names)):
            rows = there[case.groups.of[there] == group]
            if rows.size < 2:
                continue
            part = np.where(case.phases.active, matrix[rows], np.nan)
            usual = median(part)[:, None]
            with np.errstate(invalid="ignore", divide="ignore"):
                relative = np.where(usual > 0.02, part / usual, np.nan)
            together = median(relative.T)
            own[rows] = relative - together
    return own
