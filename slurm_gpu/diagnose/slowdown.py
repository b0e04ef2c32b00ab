"""Explain a slowdown of the whole job by other changes at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.outliers import power_outlier, starving_outlier, utilisation_outlier
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.trend import BY_STEPS, LEAST_TREND, LINKS, Trend, change_since, find_trend
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

# Minimum fall of power, as a share of the fall of the pace, if all workers wait longer.
_LESS_POWER = 0.05
# Minimum fall of SM activity, as a share of the fall of work, if all workers wait longer.
_LESS_BUSY = 0.5
_UTIL_WITH_TREND = 0.015
_ANOTHER_PHASE, _ANOTHER_PHASE_LINKS = 4.0, -1.5


def slowdown(case: Case) -> Verdict | None:
    """Find a slowdown of all workers together, and explain it by other changes at the same time."""
    trend = find_trend(case)
    if trend is None:
        return None
    util = change_since(case, Signal.UTIL, trend)
    clock = change_since(case, Signal.CLOCK, trend)
    moved = {signal: change_since(case, signal, trend) for signal in LINKS}
    carried = {signal: change for signal, change in moved.items() if change is not None}
    pace = trend.fell if trend.signal is not Signal.POWER or not carried else _median_of(carried.values())
    if pace > -LEAST_TREND:
        # Steps are as frequent as before.
        return None
    power = change_since(case, Signal.POWER, trend)
    if trend.signal in LINKS and power is not None and power > _LESS_POWER * pace:
        # Fewer steps do more work each, as with a larger batch or in an evaluation.
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
    if clock is not None and clock <= 0.7 * pace:
        text = f"all clocks fell by {1 - np.exp(clock):.0%}"
        evidence.append(Evidence(text=text, metric="clock", value=float(np.exp(clock)), expected=1.0))
        return case.verdict(Cause.SLOW, 0.65, kind="all clocks", evidence=tuple(evidence), **when)
    if any(change < _another_phase(trend) for change in carried.values()):
        # Traffic per step changed far more than computation, as in an evaluation.
        return None
    slack = max(0.06, 0.6 * abs(pace))
    alike = all(abs(change - pace) <= slack for change in carried.values())
    if util is None or not carried or not alike or case.judged.sum() < 2 or _as_busy(case, trend):
        why = f"all workers do {1 - np.exp(trend.fell):.0%} less than before, but the data show no cause"
        return case.verdict(Cause.INCONCLUSIVE, 0.0, evidence=tuple(evidence), why_not=(why,))
    found = starving_outlier(case, trend, evidence, lack)
    if found is None and trend.signal in BY_STEPS:
        found = power_outlier(case, trend, evidence) or utilisation_outlier(case, trend, evidence)
    if found is not None:
        return replace(found, since_s=since_s, until_s=until_s)
    for signal, change in carried.items():
        text = f"{signal.value} fell at the same time by {1 - np.exp(change):.0%}; waiting GPUs stayed busy"
        evidence.append(Evidence(text=text, metric=signal.value, value=float(np.exp(change)), expected=1.0))
    verdict = case.verdict(
        Cause.COMMUNICATION, 0.7, kind="all", nodes=case.series.nodes, evidence=tuple(evidence), **when
    )
    if trend.signal in BY_STEPS:
        why = "without SM activity, a slow worker that all others wait for has the same symptoms"
        verdict = verdict.limited(why, most=SUSPICION)
    return verdict


def _as_busy(case: Case, trend: Trend) -> bool:
    """Return whether SMs are about as active as before.

    If so, workers do not wait longer, since only a few SMs are active in a waiting GPU.
    """
    busy = change_since(case, Signal.BUSY, trend)
    if trend.signal is not Signal.WORK or busy is None:
        return False
    return bool(np.expm1(busy) > _LESS_BUSY * np.expm1(trend.fell))


def _median_of(changes: Iterable[float]) -> float:
    return float(np.median(list(changes)))


def _another_phase(trend: Trend) -> float:
    if trend.signal in BY_STEPS:
        return _ANOTHER_PHASE_LINKS
    return _ANOTHER_PHASE * trend.fell if trend.fell > -0.5 else -np.inf
