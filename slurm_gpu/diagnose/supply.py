"""What the GPUs wait for: links between them, or data from their hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import noise, segments
from slurm_gpu.diagnose.hardware import LEAST_CLOCK
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile, sigma, smooth
from slurm_gpu.diagnose.signals import BLOCK_S, LEAST_BLOCKS, Signal
from slurm_gpu.diagnose.verdict import SUSPECT_BELOW, Cause, Evidence, Verdict

_LINKS = (Signal.NVLINK, Signal.INFINIBAND, Signal.NETWORK, Signal.PCIE)
_BY_STEPS = (*_LINKS, Signal.POWER)
"""What tells of the pace where no activity of SMs is told."""
_LEAST_LINK = 0.12
_LINK_ENDS = 2
_UNUSED, _USED_INSTEAD = 0.1, 0.5
"""Of what InfiniBand carries on the other nodes."""
_LEAST_UTIL, _UTIL_Z = 0.05, 5.0
_UTIL_OF_ALL = 0.85
_UTIL_IRREGULAR, _IRREGULAR = 0.97, 0.015
_OTHER_WORK, _OTHER_MEMORY = -0.7, 0.1
"""Work is a logarithm: less than half as much."""
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
_TREND_Z = 6.0
_STEPS_EVEN_OUT = 3
"""Blocks: over so long readings that hold one burst or two of a long step are what a link carries."""
_MOST_OF_IT = 0.75
_IDLE = 0.01
_LEAST_MOVE, _LEAST_GAP = 0.015, 0.01
_LESS_POWER = 0.05
"""Of what the pace falls: so much at least does power where all wait longer."""
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
    return _by_sockets(case)


def _by_sockets(case: Case) -> Verdict | None:
    """Nodes whose InfiniBand lies still, and whose network carries what the others' InfiniBand does.

    Told of all nodes together: where a stage is a node it has no peers, and all take part in the same steps.
    """
    infiniband, network = case.signals.get(Signal.INFINIBAND), case.signals.get(Signal.NETWORK)
    nodes = case.series.nodes
    if infiniband is None or network is None or len(nodes) <= _LINK_ENDS:
        return None
    rows = [int(case.series.on(node)[0]) for node in nodes]
    ib, tcp = (median(matrix[rows]) for matrix in (infiniband, network))
    usual, usually = middle(ib), middle(tcp)
    with np.errstate(invalid="ignore"):
        odd = (ib < _UNUSED * usual) & (tcp > usually + _USED_INSTEAD * usual)
    if not odd.any() or odd.mean() > _MANY:
        return None
    named = tuple(node for node, is_odd in zip(nodes, odd, strict=True) if is_odd)
    text = f"{', '.join(named)}: InfiniBand lies still, and the network carries what it does elsewhere"
    value = float(np.median(ib[odd]))
    return case.verdict(
        Cause.COMMUNICATION,
        0.85,
        kind="sockets",
        nodes=named,
        evidence=(Evidence(text=text, metric=Signal.INFINIBAND.value, value=value, expected=usual),),
    )


def starved_some(case: Case) -> Verdict | None:
    """Some GPUs have nothing to run part of the time, while those that wait for them spin."""
    rows = case.down(Signal.UTIL, _LEAST_UTIL, _UTIL_Z) & ~_of_another_role(case)
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


def _of_another_role(case: Case) -> NDArray[np.bool_]:
    """Who does far less than its peers, and holds less: whoever waits for data does as much in each step."""
    memory = case.series.get(Metric.MEM_USED)
    less = np.zeros(case.n, dtype=bool)
    with np.errstate(invalid="ignore"):
        if memory is not None:
            held = median(memory)
            for members in case.groups.members():
                usual = middle(held[members])
                less[members] = (held[members] < usual - _OTHER_MEMORY) & (held[members] < 0.67 * usual)
        return np.asarray(less | (case.level(Signal.WORK) <= _OTHER_WORK))


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


def _irregular(case: Case, level: float) -> bool:
    """Whether all lack something to run now more, now less.

    What the launches of kernels leave is the same in each step; what comes from outside is late as it may be.
    """
    util = case.job(Signal.UTIL)
    return util is not None and level < _UTIL_IRREGULAR and float(noise(util[None, :])[0]) >= _IRREGULAR


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
    if not known or not ((level := min(known)) < _UTIL_OF_ALL or _irregular(case, level)):
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
    pace = trend.fell if trend.signal is not Signal.POWER or not carried else _middle_of(carried.values())
    if pace > -_LEAST_TREND:
        return None  # steps come as often as before
    power = _change(case, Signal.POWER, trend)
    if trend.signal in _LINKS and power is not None and power > _LESS_POWER * pace:
        return None  # steps are fewer and do more: a larger batch, an evaluation
    since_s = case.time_of(trend.first) if trend.first > 0 else None
    until_s = case.time_of(trend.stop) if trend.stop < case.n_blocks else None
    text = f"all workers together: {trend.signal.value} fell by {1 - np.exp(trend.fell):.0%}"
    evidence = [Evidence(text=text, metric=trend.signal.value, value=float(np.exp(trend.fell)), expected=1.0)]
    when = {"since_s": since_s, "until_s": until_s}
    if util is not None and util <= min(-_UTIL_WITH_TREND, 0.5 * pace):
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
    if trend.signal in _BY_STEPS and (found := _moved_apart(case, trend, evidence)) is not None:
        return replace(found, since_s=since_s, until_s=until_s)
    for signal, change in carried.items():
        text = f"{signal.value} fell with it, by {1 - np.exp(change):.0%}, while the GPUs stayed busy waiting"
        evidence.append(Evidence(text=text, metric=signal.value, value=float(np.exp(change)), expected=1.0))
    verdict = case.verdict(
        Cause.COMMUNICATION, 0.7, kind="all", nodes=case.series.nodes, evidence=tuple(evidence), **when
    )
    if trend.signal in _BY_STEPS:
        why = "without SM activity a slow worker that all wait for looks alike"
        verdict = verdict.limited(why, most=SUSPECT_BELOW - 0.05)
    return verdict


def _moved_apart(case: Case, trend: _Trend, evidence: Sequence[Evidence]) -> Verdict | None:
    """Who kept its power, or lost most of it, when all became slower: whom the others wait for.

    Of links that are slow all have the same. Who has more to do waits less than the others since then, and
    takes more than they do; one that takes less than those who wait for it is held up by something in itself.
    """
    found = case.deviations.get(Signal.POWER)
    if found is None or case.judged.sum() <= _LINK_ENDS:
        return None
    then, before = found.ratios[:, trend.first : trend.stop], found.ratios[:, slice(*trend.best)]
    moved = median(then) - median(before)
    order = np.argsort(moved)[: int(np.isfinite(moved).sum())]
    if len(order) <= _LINK_ENDS:
        return None
    cut = int(np.argmax(np.diff(moved[order]))) + 1
    low, high = order[:cut], order[cut:]
    apart = float(moved[high].mean() - moved[low].mean())
    within = max(float(moved[low].std()), float(moved[high].std()), _LEAST_MOVE / case.rules.z)
    gap = float(moved[high].min() - moved[low].max())
    if apart < max(_LEAST_MOVE, case.rules.z * within) or gap < max(_LEAST_GAP, 0.5 * apart):
        return None
    # What begins on one GPU alone is trouble of that GPU; who has more to do since then is a group's.
    chosen = high if 2 * len(high) <= len(order) else low
    if chosen is low and len(low) > 1:
        return None
    rows = np.isin(np.arange(case.n), chosen)
    names = tuple(worker.name for worker in case.workers(rows))
    who = names[0] if len(names) == 1 else f"{len(names)} workers"
    text = f"{who}: power changed by {apart:.1%} against the other GPUs' at the same time"
    told = (*evidence, Evidence(text=text, metric="power", value=apart, expected=0.0, workers=names))
    if len(names) > 1:
        verdict = case.verdict(Cause.IMBALANCE, 0.55, kind="workers", roles=names, evidence=told)
    else:
        verdict = case.verdict(Cause.SLOW, 0.55, kind="power", culprits=case.workers(rows), evidence=told)
    return verdict.limited("without SM activity it is told by power alone", most=SUSPECT_BELOW - 0.05)


def _middle_of(changes: Iterable[float]) -> float:
    return float(np.median(list(changes)))


def _another_phase(trend: _Trend) -> float:
    if trend.signal in _BY_STEPS:
        return _ANOTHER_PHASE_LINKS
    return _ANOTHER_PHASE * trend.fell if trend.fell > -0.5 else -np.inf


def _trend(case: Case) -> _Trend | None:
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


def _fall(case: Case, signal: Signal, job: Matrix, least_fall: float = _LEAST_TREND) -> _Trend | None:
    """The part of the time, begun at a change, in which the job falls clearest below what it did before.

    Before and then are told by their middles: an evaluation is neither how it trained before, nor an end of
    what began. The part may hold several levels, as steps that a reading holds more or fewer of make them.
    """
    course = np.log(np.maximum(job, 1e-6))
    cuts = [part.start for part in segments(course)] + [len(course)]
    each_s = case.bins_of_block * case.series.width_s
    least_before, least = round(4 * BLOCK_S / each_s), max(_LEAST_FALL, round(case.rules.trend_s / each_s))
    found: tuple[float, _Trend] | None = None
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
                found = z, _Trend(signal, first, stop, fell, (0, first))
    return None if found is None else found[1]


def _known(row: Matrix) -> Matrix:
    return row[np.isfinite(row)]


def _change(case: Case, signal: Signal, trend: _Trend) -> float | None:
    job = case.job(signal)
    if job is None:
        return None
    n = _STEPS_EVEN_OUT if signal in _LINKS else 1
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
