"""Explain a slowdown of all workers by other changes at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.outliers import power_outlier, starving_outlier, utilisation_outlier
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.trend import (
    BY_STEPS,
    LEAST_TREND,
    LINKS,
    Trend,
    change_since,
    find_trend,
    recent_fall,
)
from slurm_gpu.diagnose.verdict import SUSPICION, UNEXPLAINED, Cause, Evidence, Verdict

# Minimum fall in power, as a share of the fall in pace, if all workers wait longer.
_LESS_POWER = 0.05
# Minimum fall in SM activity, as a share of the fall in work, if all workers wait longer.
_LESS_BUSY = 0.5
_UTIL_WITH_TREND = 0.015
# Minimum gap between the changes of two groups of workers, as a logarithm, and in standard deviations within
# the groups.
_LEAST_UNLIKE, _UNLIKE_SIGMAS = 0.015, 2.0
# Minimum fall in clocks, as a share of the fall in pace, if lower clocks cause the slowdown.
_BY_CLOCK = 0.7
_ANOTHER_PHASE, _ANOTHER_PHASE_LINKS = 4.0, -1.5


def slowdown(case: Case) -> Verdict | None:
    """Find a simultaneous slowdown of all workers, and explain it by other changes at the same time."""
    trend = find_trend(case)
    if trend is None:
        return None
    util = change_since(case, Signal.UTIL, trend)
    clock = change_since(case, Signal.CLOCK, trend)
    moved = {signal: change_since(case, signal, trend) for signal in LINKS}
    carried = {signal: change for signal, change in moved.items() if change is not None}
    pace = trend.fell
    if trend.signal is Signal.POWER and carried:
        pace = float(np.median(list(carried.values())))
    if pace > -LEAST_TREND:
        # Steps are as frequent as before.
        return None
    power = change_since(case, Signal.POWER, trend)
    if trend.signal in LINKS and power is not None and power > _LESS_POWER * pace:
        # There are fewer steps with more work in each, as with a larger batch or in an evaluation.
        return None
    since_s = case.time_of(trend.first) if trend.first > 0 else None
    until_s = case.time_of(trend.stop) if trend.stop < case.n_blocks else None
    text = f"all workers together: {trend.signal.value} fell by {1 - np.exp(trend.fell):.0%}"
    evidence = [Evidence(text=text, metric=trend.signal.value, value=float(np.exp(trend.fell)), expected=1.0)]
    when = {"since_s": since_s, "until_s": until_s}
    lack = min(-_UTIL_WITH_TREND, 0.5 * pace)
    if util is not None and util <= lack:
        text = f"utilisation fell by {-util:.0%}: GPUs wait for their hosts rather than for each other"
        evidence.append(Evidence(text=text, metric="util", value=util, expected=0.0))
        return case.verdict(Cause.STARVATION, 0.75, kind="all", evidence=tuple(evidence), **when)
    if clock is not None and clock <= _BY_CLOCK * pace:
        text = f"all clocks fell by {1 - np.exp(clock):.0%}"
        evidence.append(Evidence(text=text, metric="clock", value=float(np.exp(clock)), expected=1.0))
        return case.verdict(Cause.SLOW, 0.65, kind="all clocks", evidence=tuple(evidence), **when)
    if any(change < _another_phase(trend) for change in carried.values()):
        # Traffic per step changed far more than computation, as in an evaluation.
        return None
    slack = max(0.06, 0.6 * abs(pace))
    alike = all(abs(change - pace) <= slack for change in carried.values())
    fell = bool(carried) and np.median(list(carried.values())) <= 0.5 * pace
    if util is None or not fell or not alike or case.judged.sum() < 2 or _as_busy(case, trend):
        why = f"all workers do {1 - np.exp(trend.fell):.0%} less than before, but the data show no cause"
        return case.verdict(Cause.INCONCLUSIVE, 0.0, evidence=tuple(evidence), why_not=(why,))
    found = starving_outlier(case, trend, evidence, lack) or _own_clock(case, trend, evidence, pace)
    if found is None and trend.signal in BY_STEPS:
        found = power_outlier(case, trend, evidence) or utilisation_outlier(case, trend, evidence)
    if found is not None:
        return replace(found, since_s=since_s, until_s=until_s)
    if (unlike := _unlike(case, trend)) is not None:
        why = (
            f"all workers do {1 - np.exp(trend.fell):.0%} less than before, but their {unlike.value} changed "
            "by different amounts, and the data show no cause"
        )
        return case.verdict(Cause.INCONCLUSIVE, 0.0, evidence=tuple(evidence), why_not=(why,))
    for signal, change in carried.items():
        text = f"{signal.value} fell at the same time by {1 - np.exp(change):.0%}; waiting GPUs stayed busy"
        evidence.append(Evidence(text=text, metric=signal.value, value=float(np.exp(change)), expected=1.0))
    verdict = case.verdict(
        Cause.COMMUNICATION, 0.7, kind="all", nodes=case.series.nodes, evidence=tuple(evidence), **when
    )
    if trend.signal in BY_STEPS:
        why = "without SM activity, a slow worker for which all others wait has the same symptoms"
        verdict = verdict.limited(why, most=SUSPICION)
    return verdict


def recent_slowdown(case: Case) -> Verdict | None:
    """Abstain if all workers do much less than before, but the fall is too short or unclear to explain."""
    trend = recent_fall(case)
    if trend is None:
        return None
    share = 1 - float(np.exp(trend.fell))
    why = (
        f"all workers do {share:.0%} less than before, but the change is too recent or too irregular to find "
        "the cause"
    )
    item = Evidence(text=why, metric=trend.signal.value, value=1 - share, expected=1.0)
    return case.verdict(
        Cause.INCONCLUSIVE,
        0.0,
        kind=UNEXPLAINED,
        since_s=case.time_of(trend.first),
        evidence=(item,),
        why_not=(why,),
    )


def _own_clock(case: Case, trend: Trend, evidence: Sequence[Evidence], pace: float) -> Verdict | None:
    """Find workers whose own clocks fell enough to explain the slowdown; they may have no peers."""
    clocks = case.signals.get(Signal.CLOCK)
    if clocks is None:
        return None
    moved = trend.moved(np.log(np.maximum(clocks, 1e-6)))
    with np.errstate(invalid="ignore"):
        rows = case.judged & (moved <= _BY_CLOCK * pace)
    if not rows.any() or rows.sum() > 0.5 * case.judged.sum():
        return None
    change = float(np.expm1(np.median(moved[rows])))
    names, who = case.named(rows)
    text = f"{who}: the SM clock fell by {-change:.0%} at the same time"
    item = Evidence(text=text, metric="clock", value=1 + change, expected=1.0, workers=names)
    nodes = case.whole_nodes(rows)
    return case.verdict(
        Cause.SLOW, 0.7, kind="clock", culprits=case.workers(rows), nodes=nodes, evidence=(*evidence, item)
    )


def _unlike(case: Case, trend: Trend) -> Signal | None:
    """Return a signal that changed differently on some workers.

    Such a signal is evidence that not all workers wait for the same links. Changes are compared over all
    groups, because a worker may have no peers.
    """
    signal = Signal.BUSY if Signal.BUSY in case.signals else Signal.POWER
    if signal not in case.signals:
        return None
    moved = trend.moved(np.log(np.maximum(case.signals[signal], 1e-6)))[case.judged]
    moved = np.sort(moved[np.isfinite(moved)])
    if moved.size < 2:
        return None
    gaps = np.diff(moved)
    cut = int(np.argmax(gaps)) + 1
    within = max(moved[:cut].std(), moved[cut:].std())
    return signal if gaps[cut - 1] >= max(_LEAST_UNLIKE, _UNLIKE_SIGMAS * within) else None


def _as_busy(case: Case, trend: Trend) -> bool:
    """Return whether SMs are about as active as before.

    If so, workers do not wait longer, since a waiting GPU has only a few active SMs.
    """
    busy = change_since(case, Signal.BUSY, trend)
    if trend.signal is not Signal.WORK or busy is None:
        return False
    return bool(np.expm1(busy) > _LESS_BUSY * np.expm1(trend.fell))


def _another_phase(trend: Trend) -> float:
    if trend.signal in BY_STEPS:
        return _ANOTHER_PHASE_LINKS
    return _ANOTHER_PHASE * trend.fell if trend.fell > -0.5 else -np.inf
