"""A job that became slower as a whole: what else changed then says why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from slurm_gpu.diagnose.apart import never_waits, power_apart, wants_data
from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.trend import BY_STEPS, LEAST_TREND, LINKS, Trend, changed, find_trend
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_LESS_POWER = 0.05
"""Of what the pace falls: so much at least does power where all wait longer."""
_LESS_BUSY = 0.5
"""Of what the work falls: by so much at least SMs are less active where all wait longer."""
_UTIL_WITH_TREND = 0.015
_ANOTHER_PHASE, _ANOTHER_PHASE_LINKS = 4.0, -1.5


def slower_than_before(case: Case) -> Verdict | None:
    """No worker stands out, but all do less than they did: by what else changed then."""
    trend = find_trend(case)
    if trend is None:
        return None
    util = changed(case, Signal.UTIL, trend)
    clock = changed(case, Signal.CLOCK, trend)
    moved = {signal: changed(case, signal, trend) for signal in LINKS}
    carried = {signal: change for signal, change in moved.items() if change is not None}
    pace = trend.fell if trend.signal is not Signal.POWER or not carried else _middle_of(carried.values())
    if pace > -LEAST_TREND:
        return None  # steps come as often as before
    power = changed(case, Signal.POWER, trend)
    if trend.signal in LINKS and power is not None and power > _LESS_POWER * pace:
        return None  # steps are fewer and do more: a larger batch, an evaluation
    since_s = case.time_of(trend.first) if trend.first > 0 else None
    until_s = case.time_of(trend.stop) if trend.stop < case.n_blocks else None
    text = f"all workers together: {trend.signal.value} fell by {1 - np.exp(trend.fell):.0%}"
    evidence = [Evidence(text=text, metric=trend.signal.value, value=float(np.exp(trend.fell)), expected=1.0)]
    when = {"since_s": since_s, "until_s": until_s}
    lack = min(-_UTIL_WITH_TREND, 0.5 * pace)
    if util is not None and util <= lack:
        text = f"utilisation fell by {-util:.0%}: they wait for their hosts, not for each other"
        evidence.append(Evidence(text=text, metric="util", value=util, expected=0.0))
        return case.verdict(Cause.STARVATION, 0.75, kind="all", evidence=tuple(evidence), **when)
    if clock is not None and clock <= 0.7 * pace:
        text = f"all clocks fell by {1 - np.exp(clock):.0%}"
        evidence.append(Evidence(text=text, metric="clock", value=float(np.exp(clock)), expected=1.0))
        return case.verdict(Cause.SLOW, 0.65, kind="all clocks", evidence=tuple(evidence), **when)
    if any(change < _another_phase(trend) for change in carried.values()):
        return None  # an evaluation: what is sent for each step changed far more than what is computed
    slack = max(0.06, 0.6 * abs(pace))
    alike = all(abs(change - pace) <= slack for change in carried.values())
    if util is None or not carried or not alike or case.judged.sum() < 2 or _as_busy(case, trend):
        why = f"all do less than before by {1 - np.exp(trend.fell):.0%}, and nothing that was told says why"
        return case.verdict(Cause.UNKNOWN, 0.0, evidence=tuple(evidence), why_not=(why,))
    found = wants_data(case, trend, evidence, lack)
    if found is None and trend.signal in BY_STEPS:
        found = power_apart(case, trend, evidence) or never_waits(case, trend, evidence)
    if found is not None:
        return replace(found, since_s=since_s, until_s=until_s)
    for signal, change in carried.items():
        text = f"{signal.value} fell with it, by {1 - np.exp(change):.0%}, while the GPUs stayed busy waiting"
        evidence.append(Evidence(text=text, metric=signal.value, value=float(np.exp(change)), expected=1.0))
    verdict = case.verdict(
        Cause.COMMUNICATION, 0.7, kind="all", nodes=case.series.nodes, evidence=tuple(evidence), **when
    )
    if trend.signal in BY_STEPS:
        why = "without SM activity a slow worker that all wait for looks alike"
        verdict = verdict.limited(why, most=SUSPICION)
    return verdict


def _as_busy(case: Case, trend: Trend) -> bool:
    """Whether SMs are as active as before, or nearly so: who waits holds a few of them."""
    busy = changed(case, Signal.BUSY, trend)
    if trend.signal is not Signal.WORK or busy is None:
        return False
    return bool(np.expm1(busy) > _LESS_BUSY * np.expm1(trend.fell))


def _middle_of(changes: Iterable[float]) -> float:
    return float(np.median(list(changes)))


def _another_phase(trend: Trend) -> float:
    if trend.signal in BY_STEPS:
        return _ANOTHER_PHASE_LINKS
    return _ANOTHER_PHASE * trend.fell if trend.fell > -0.5 else -np.inf
