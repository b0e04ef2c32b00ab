"""What the GPUs wait for: links between them, or data from their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import segments
from slurm_gpu.diagnose.hardware import LEAST_CLOCK
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile
from slurm_gpu.diagnose.signals import BLOCK_S, LEAST_BLOCKS, Signal
from slurm_gpu.diagnose.verdict import SUSPECT_BELOW, Cause, Evidence, Verdict

_LINKS = (Signal.NVLINK, Signal.INFINIBAND, Signal.NETWORK, Signal.PCIE)
_LEAST_LINK = 0.12
_LEAST_UTIL = 0.05
_UTIL_OF_ALL = 0.85
_LACKS_AT_TIMES = 0.04
_NEARLY_ALWAYS, _LEAST_TURNS = 0.6, 3
_MANY = 0.25
"""Of a stage's workers: so many that lack something in turn lack it all."""
_CPU_FULL = 0.85
_LEAST_TREND = 0.04
_LEAST_FALL = 5
"""Blocks: of bins of minutes two may hold a checkpoint each."""
_LEAST_TREND_OF_POWER = 0.015
"""Who waits takes half of the power of who computes: of what the pace falls power shows a part."""
_UTIL_WITH_TREND = 0.015
_ANOTHER_PHASE, _ANOTHER_PHASE_LINKS = 4.0, -1.5
_HARDLY_USED = 10.0


def links(case: Case) -> Verdict | None:
    """Links that carry less than those of peers, though in step: what they should carry goes elsewhere."""
    for signal in _LINKS:
        rows = case.down(signal, _LEAST_LINK) & ~case.down(Signal.UTIL, 0.1)
        if not rows.any() or rows.sum() > 0.5 * case.judged.sum():
            continue
        since_s, until_s = case.span(signal, rows)
        evidence = [case.evidence(signal, rows)]
        evidence += [
            case.evidence(other, rows)
            for other in _LINKS
            if other is not signal and (case.up(other, _LEAST_LINK) & rows).any()
        ]
        between = tuple(dict.fromkeys(worker.node for worker in case.workers(rows)))
        return case.verdict(
            Cause.COMMUNICATION,
            case.sure(signal, rows, 0.85),
            kind=signal.value,
            culprits=case.workers(rows) if signal in (Signal.NVLINK, Signal.PCIE) else (),
            nodes=between,
            since_s=since_s,
            until_s=until_s,
            evidence=tuple(evidence),
        )
    return None


def starved_some(case: Case) -> Verdict | None:
    """Some GPUs have nothing to run part of the time, while those that wait for them spin."""
    rows = case.down(Signal.UTIL, _LEAST_UTIL)
    if not rows.any() or rows.sum() > 0.5 * case.judged.sum():
        return None
    since_s, until_s = case.span(Signal.UTIL, rows)
    evidence = [case.evidence(Signal.UTIL, rows)]
    hosts = (case.up(Signal.CPU, 0.1, 4.0) & rows).any()
    if hosts:
        evidence.append(case.evidence(Signal.CPU, rows))
    wanting = rows | _in_turn(case)
    there = {worker.node for worker in case.workers(wanting)}
    if len(there) == 1 < len(case.series.nodes) and not _whole_stage(case, wanting):
        rows = wanting
    elif wanting.sum() > rows.sum() and wanting.sum() >= max(
        3.0, _MANY * case.judged.sum() / _n_groups(case)
    ):
        # Loaders that are all too slow are behind in turn: whoever is just now is not at fault.
        text = f"{wanting.sum()} GPUs have nothing to run, in turn"
        share = float(wanting.sum() / max(1, case.judged.sum()))
        evidence.append(Evidence(text=text, metric="util", value=share, expected=0.0))
        return case.verdict(Cause.STARVATION, 0.7, kind="all", since_s=since_s, evidence=tuple(evidence))
    nodes = case.whole_nodes(rows)
    verdict = case.verdict(
        Cause.STARVATION,
        0.85 if hosts else 0.7,
        kind="node" if nodes else "workers",
        culprits=case.workers(rows),
        nodes=nodes,
        since_s=since_s,
        until_s=until_s,
        evidence=tuple(evidence),
    )
    if (case.down(Signal.CLOCK, LEAST_CLOCK) & rows).any():
        why = "their clocks are lower as well, as those of idle GPUs may be"
        verdict = verdict.limited(why, most=SUSPECT_BELOW)
    return verdict


def _in_turn(case: Case) -> NDArray[np.bool_]:
    """Who has nothing to run for some of the time, against those that do most at that time."""
    util = case.signals[Signal.UTIL]
    lacking = quantile(util.T, 0.95) - util
    with np.errstate(invalid="ignore"):
        return np.asarray(case.judged & (quantile(lacking, 0.85) >= _LACKS_AT_TIMES))


def _one_after_the_other(case: Case) -> Verdict | None:
    """Nearly always somebody has nothing to run, and others do in turn: their loaders are all too slow."""
    util = case.signals[Signal.UTIL]
    told = util[:, np.isfinite(util).any(axis=0)]
    late = told[case.judged, -max(LEAST_BLOCKS * 3, told.shape[1] // 3) :]
    if late.shape[0] < _LEAST_TURNS or late.shape[1] < LEAST_BLOCKS * 3:
        return None
    lacking = np.nan_to_num(quantile(late.T, 0.95)[None, :] - late)
    behind = lacking.max(axis=0) >= _LACKS_AT_TIMES
    share, turns = float(behind.mean()), len(np.unique(lacking.argmax(axis=0)[behind]))
    if share < _NEARLY_ALWAYS or turns < _LEAST_TURNS:
        return None
    text = f"{share:.0%} of the time some GPU has nothing to run: {turns} of them in turn"
    evidence = (Evidence(text=text, metric="util", value=share, expected=0.0),)
    return case.verdict(Cause.STARVATION, 0.65, kind="all", evidence=evidence)


def _n_groups(case: Case) -> int:
    return len(case.groups.names)


def _whole_stage(case: Case, rows: NDArray[np.bool_]) -> bool:
    """Whether these are (nearly) all of a stage: the first one reads, for all."""
    return _n_groups(case) > 1 and any(rows[members].mean() >= 0.75 for members in case.groups.members())


def starved_all(case: Case) -> Verdict | None:
    """All GPUs, or all of the stage that reads, have nothing to run for much of the time."""
    rows, cpu = case.signals.get(Signal.UTIL), case.job(Signal.CPU)
    if rows is None:
        return None
    levels = [middle(median(rows[members].T)) for members in case.groups.members()]
    known = [level for level in levels if np.isfinite(level)]
    if not known or not (level := min(known)) < _UTIL_OF_ALL:
        return _one_after_the_other(case)
    who = "all GPUs" if len(levels) == 1 else f"all GPUs of {case.groups.names[levels.index(level)]}"
    text = f"{who} have nothing to run for {1 - level:.0%} of the time"
    evidence = [Evidence(text=text, metric="util", value=level, expected=1.0)]
    full = cpu is not None and middle(cpu) >= _CPU_FULL
    if cpu is not None and full:
        text = f"CPUs are busy for {middle(cpu):.0%}"
        evidence.append(Evidence(text=text, metric="cpu", value=middle(cpu), expected=0.5))
    return case.verdict(Cause.STARVATION, 0.85 if full else 0.55, kind="all", evidence=tuple(evidence))


@dataclass(frozen=True, slots=True)
class _Trend:
    """Blocks [first, stop) in which the job as a whole does less than at its best: `fell`, a logarithm."""

    signal: Signal
    first: int
    stop: int
    fell: float
    best: tuple[int, int]


def slower_than_before(case: Case) -> Verdict | None:
    """No worker stands out, but all do less than they did: by what else changed then."""
    trend = _trend(case)
    if trend is None:
        return None
    util = _change(case, Signal.UTIL, trend)
    clock = _change(case, Signal.CLOCK, trend)
    moved = {signal: _change(case, signal, trend) for signal in _LINKS}
    carried = {signal: change for signal, change in moved.items() if change is not None}
    pace = _pace(trend, carried)
    if pace > -_LEAST_TREND:
        return None  # steps come as often as before
    since_s = case.time_of(trend.first) if trend.first > 0 else None
    until_s = case.time_of(trend.stop) if trend.stop < case.n_blocks else None
    text = f"all workers together: {trend.signal.value} fell by {1 - np.exp(trend.fell):.0%}"
    evidence = [Evidence(text=text, metric=trend.signal.value, value=float(np.exp(trend.fell)), expected=1.0)]
    when = {"since_s": since_s, "until_s": until_s}
    if util is not None and util <= min(-_UTIL_WITH_TREND, 0.5 * trend.fell):
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
    if util is None or not carried or not alike:
        why = f"all do less than before by {1 - np.exp(trend.fell):.0%}, and nothing that was told says why"
        return case.verdict(Cause.UNKNOWN, 0.0, evidence=tuple(evidence), why_not=(why,))
    for signal, change in carried.items():
        text = f"{signal.value} fell with it, by {1 - np.exp(change):.0%}, while the GPUs stayed busy waiting"
        evidence.append(Evidence(text=text, metric=signal.value, value=float(np.exp(change)), expected=1.0))
    verdict = case.verdict(
        Cause.COMMUNICATION, 0.7, kind="all", nodes=case.series.nodes, evidence=tuple(evidence), **when
    )
    if trend.signal is Signal.POWER:
        why = "without SM activity a slow worker that all wait for looks alike"
        verdict = verdict.limited(why, most=SUSPECT_BELOW - 0.05)
    return verdict


def _pace(trend: _Trend, carried: Mapping[Signal, float]) -> float:
    """By how much rarer steps come, a logarithm. Each sends as much as ever: links tell it as work does.

    Power alone does not: whoever waits takes some as well.
    """
    if trend.signal is not Signal.POWER or not carried:
        return trend.fell
    return float(np.median(list(carried.values())))


def _another_phase(trend: _Trend) -> float:
    if trend.signal is Signal.POWER:
        return _ANOTHER_PHASE_LINKS
    return _ANOTHER_PHASE * trend.fell if trend.fell > -0.5 else -np.inf


def _trend(case: Case) -> _Trend | None:
    for signal in (Signal.WORK, Signal.BUSY, Signal.POWER):
        job = case.job(signal)
        if job is None or not middle(job) > 0.01:
            continue
        return _fall(case, signal, job, _LEAST_TREND if signal is not Signal.POWER else _LEAST_TREND_OF_POWER)
    return None


def _fall(case: Case, signal: Signal, job: Matrix, least: float) -> _Trend | None:
    """From the best part to the worst after it, where these are long."""
    parts = segments(np.log(np.maximum(job, 1e-4)))
    each_s = case.bins_of_block * case.series.width_s
    long = [part for part in parts if (part.stop - part.start) * each_s >= 4 * BLOCK_S]
    if not long:
        return None
    best = max(long, key=lambda part: part.level)
    after = [
        part
        for part in long
        if part.start >= best.stop and part.stop - part.start >= max(_LEAST_FALL, case.rules.trend_s / each_s)
    ]
    if not after:
        return None
    worst = min(after, key=lambda part: part.level)
    fell = worst.level - best.level
    if fell > -least:
        return None
    return _Trend(signal, worst.start, worst.stop, fell, (best.start, best.stop))


def _change(case: Case, signal: Signal, trend: _Trend) -> float | None:
    job = case.job(signal)
    if job is None:
        return None
    now, then = _level(job, trend.first, trend.stop), _level(job, *trend.best)
    if not (np.isfinite(now) and np.isfinite(then)):
        return None
    if signal in (Signal.UTIL, Signal.CPU):
        return now - then
    if not then > max(1e-3, _HARDLY_USED * case.series.step):
        return None  # a link that the job hardly uses: rounding would be the answer
    return float(np.log(max(now, 1e-6) / then))


def _level(row: Matrix, first: int, stop: int) -> float:
    return middle(row[first:stop])
