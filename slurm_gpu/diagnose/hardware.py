"""Find slow or failing GPUs and nodes by driver errors, clocks, and workers that never wait for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import split
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import MODELS
from slurm_gpu.diagnose.robust import median, middle, quantile, smooth
from slurm_gpu.diagnose.signals import LEAST_BLOCKS, Signal
from slurm_gpu.diagnose.verdict import SUSPICION, TWO_GROUPS, UNEXPLAINED, Cause, Evidence, Verdict
from slurm_gpu.text.units import few

# Errors of memory, NVLink, bus and firmware in NVIDIA's catalogue. XIDs that indicate errors of applications,
# such as 13, 31 and 43, are not included.
FATAL_XIDS = frozenset({48, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140})
LOST = ("gpu_lost", "gpu_hung")
LEAST_CLOCK = 0.025
# Minimum permanent difference between clocks that is abnormal; under a power cap, clocks differ by 2 to 8 %.
ALWAYS_LOWER = 0.06
# Minimum deviation of the clock if the driver reports no throttling, since clocks also vary under a power
# cap.
_CLOCK_Z = 7.0
LEAST_BUSY = 0.025
_THROTTLED, _LEAST_THROTTLED = 0.1, 0.01
_LEAST_POWER = 0.04
_LEAST_OWN_CLOCK = 0.03
_LEAST_STARVED, _STARVED = 0.05, 0.1
_AHEAD, _FAR_AHEAD = 0.05, 0.15
_OFTEN_THROTTLED = 0.3
# Minimum differences, as logarithms, at which a job does not count as healthy even if no rule explains them.
_CLEARLY_BUSIER, _CLEARLY_SLOWER, _OTHER_POWER, _OTHER_CLOCK = 0.05, 0.1, 0.12, 0.15
# Minimum difference in utilisation for the same purpose, as a fraction.
_CLEARLY_LESS_UTIL = 0.03
# Minimum differences for the same purpose in standard deviations; an accusation requires more.
_DOUBTFUL_Z, _DOUBTFUL_Z_OF_UTIL = 4.0, 3.0
_BUSIER_GROUP = 1.12


def failing(case: Case) -> Verdict | None:
    """Find GPUs that the driver reports as broken or lost."""
    devices = {worker.device: row for row, worker in enumerate(case.series.workers)}
    found: dict[int, list[str]] = {}
    first_s = float("inf")
    for event in case.series.events:
        row = None if event.device is None else devices.get(event.device)
        code = event.data.get("code") if event.kind == "xid" else None
        if row is None or not (event.kind in LOST or code in FATAL_XIDS):
            continue
        found.setdefault(row, []).append(event.kind if code is None else f"xid {code}")
        first_s = min(first_s, float(event.at_s))
    if not found:
        return None
    rows = np.zeros(case.n, dtype=bool)
    rows[list(found)] = True
    evidence = tuple(
        Evidence(
            text=f"{case.series.workers[row].name}: {', '.join(sorted(set(kinds)))}, {len(kinds)} times",
            metric="events",
            value=float(len(kinds)),
            expected=0.0,
            workers=(case.series.workers[row].name,),
        )
        for row, kinds in found.items()
    )
    return case.verdict(
        Cause.SLOW,
        0.95,
        kind=sorted(set(next(iter(found.values()))))[0],
        culprits=case.workers(rows),
        nodes=case.whole_nodes(rows),
        since_s=first_s,
        evidence=evidence,
    )


def slow(case: Case) -> Verdict | None:
    """Find GPUs that have lower clocks, are throttled by a fault, or take longer for equal work."""
    throttled = case.above(Signal.THROTTLE, _THROTTLED)
    starved = case.below(Signal.UTIL, _LEAST_STARVED)
    with np.errstate(invalid="ignore"):
        # With more work, a GPU may reach its power limit and lower its clock, which is not a fault.
        more_work = case.level(Signal.WORK) >= 0.05
        lower = case.has_changed(Signal.CLOCK) | (case.level(Signal.CLOCK) <= -ALWAYS_LOWER) | throttled
    clocked = (
        (
            case.below(Signal.CLOCK, LEAST_CLOCK, _CLOCK_Z)
            | (case.below(Signal.CLOCK, LEAST_CLOCK) & throttled)
        )
        & lower
        & ~more_work
        & ~case.below(Signal.UTIL, _STARVED)
        & ~_ahead(case, _FAR_AHEAD)
    )
    if (rows := throttled | clocked).any():
        if rows.sum() > 0.5 * case.judged.sum():
            return _throttled(case)
        signal = Signal.CLOCK if clocked.any() else Signal.THROTTLE
        shown = clocked if clocked.any() else throttled
        base = 0.95 if (throttled & clocked).any() else 0.85
        verdict = _verdict(case, rows, signal, shown, base, "throttled" if throttled.any() else "clock")
        if not throttled.any() and (rows & _ahead(case, _AHEAD)).any():
            why = "its clock is lower, but it waits longer than its peers"
            verdict = verdict.limited(why, most=SUSPICION)
        return verdict
    if (node := _node_clocks(case)) is not None:
        return node
    silently_slow = _slow_without_cause(case)
    # A larger group may have more work that is not visible in the activity of the tensor pipe.
    few_of_them = silently_slow.sum() <= max(1.0, 0.34 * case.judged.sum())
    if not starved.any() and silently_slow.any() and few_of_them:
        kind = "busy longer with equal work"
        verdict = _verdict(case, silently_slow, Signal.BUSY, silently_slow, 0.75, kind)
        if case.judged.sum() > 2:
            return verdict
        return verdict.limited("of two GPUs, either may be the unusual one", most=SUSPICION)
    if Signal.BUSY not in case.deviations:
        # Spinning draws power, so the others wait for the worker whose power fell.
        odd = case.below(Signal.POWER, _LEAST_POWER) & case.has_changed(Signal.POWER) & ~starved
        if odd.any() and odd.sum() <= 0.34 * case.judged.sum():
            verdict = _verdict(case, odd, Signal.POWER, odd, 0.55, "power")
            return verdict.limited(
                "without SM activity, clocks and tensor work, this verdict is a guess", most=0.55
            )
    return _throttled(case)


def _node_clocks(case: Case) -> Verdict | None:
    """Find nodes whose clocks fell relative to their own past.

    A pipeline stage that occupies a single node has no peers on other nodes.
    """
    clocks = case.signals.get(Signal.CLOCK)
    if clocks is None or len(case.series.nodes) < 2:
        return None
    courses = np.stack([median(clocks[case.series.on(node)].T) for node in case.series.nodes])
    found = split(courses)
    with np.errstate(invalid="ignore", divide="ignore"):
        fell = np.where(found.z >= case.rules.z, np.log(found.after / found.before), 0.0)
    slow_nodes = fell <= -_LEAST_OWN_CLOCK
    if not slow_nodes.any() or (fell[~slow_nodes] <= -LEAST_CLOCK).any() or slow_nodes.mean() > 0.5:
        return None
    nodes = tuple(node for node, is_slow in zip(case.series.nodes, slow_nodes, strict=True) if is_slow)
    rows = np.array([worker.node in nodes for worker in case.series.workers], dtype=bool) & case.judged
    after, before = (float(np.median(side[slow_nodes])) for side in (found.after, found.before))
    text = f"clocks of {', '.join(nodes)} fell from {before:.0%} to {after:.0%}, unlike those of other nodes"
    return case.verdict(
        Cause.SLOW,
        0.85,
        kind="clock",
        culprits=case.workers(rows),
        nodes=nodes,
        since_s=case.time_of(int(np.median(found.at[slow_nodes]))),
        evidence=(Evidence(text=text, metric=Signal.CLOCK.value, value=after, expected=before),),
    )


def contradicts(case: Case) -> str | None:
    """Return why the lower clocks of some workers are no evidence that they are slow; None if they are."""
    rows = case.below(Signal.CLOCK, LEAST_CLOCK) & (_ahead(case, _AHEAD) | case.below(Signal.UTIL, _STARVED))
    if not rows.any():
        return None
    names = few((worker.name for worker in case.workers(rows)), 4)
    return f"{names}: lower clocks than their peers, yet they wait longer, so the slow worker is unknown"


def _ahead(case: Case, least: float) -> NDArray[np.bool_]:
    """Mark workers that wait for their peers and are therefore active for less time than the peers."""
    return case.below(Signal.BUSY, least)


def _slow_without_cause(case: Case) -> NDArray[np.bool_]:
    """Mark workers that take longer for equal work than a permanently lower clock explains."""
    busy, work = case.level(Signal.BUSY), case.level(Signal.WORK)
    by_clock = np.maximum(0.0, -np.nan_to_num(case.level(Signal.CLOCK)))
    by_clock = np.where(_clock_fell(case), 0.0, by_clock)
    with np.errstate(invalid="ignore"):
        unexplained = (np.abs(work) <= 0.4 * busy) & (busy - by_clock >= LEAST_BUSY)
        return np.asarray(case.above(Signal.BUSY, LEAST_BUSY) & unexplained)


def _clock_fell(case: Case) -> NDArray[np.bool_]:
    """Mark workers whose clocks, relative to their peers, fell below the lowest earlier level.

    The clock of a healthy worker may seem to fall repeatedly. If steps take about as long as the interval
    between samples, samples fall in computation for some minutes, and then in communication, during which
    clocks are higher.
    """
    rows = case.has_changed(Signal.CLOCK)
    for row in np.flatnonzero(rows):
        found = case.deviations[Signal.CLOCK]
        first, stop = int(found.first[row]), int(found.stop[row])
        past = smooth(found.ratios[row : row + 1, :first], LEAST_BLOCKS)
        rows[row] = found.within(int(row), first, stop) <= float(quantile(past, 0.0)[0]) - LEAST_CLOCK
    return rows


def _verdict(
    case: Case,
    rows: NDArray[np.bool_],
    signal: Signal,
    shown: NDArray[np.bool_],
    base: float,
    kind: str,
) -> Verdict:
    since_s, until_s = case.span(signal, shown)
    shown_signals = [signal] + [
        other
        for other in (Signal.THROTTLE, Signal.CLOCK, Signal.BUSY, Signal.WORK, Signal.POWER)
        if other is not signal and case.has_data(other, shown)
    ]
    if (
        Signal.THROTTLE in shown_signals[1:]
        and not (case.level(Signal.THROTTLE)[shown] >= _LEAST_THROTTLED).any()
    ):
        shown_signals.remove(Signal.THROTTLE)
    evidence = [case.evidence(one, shown) for one in shown_signals]
    return case.verdict(
        Cause.SLOW,
        case.scaled_strength(signal, shown, base),
        kind=kind,
        culprits=case.workers(rows),
        nodes=case.whole_nodes(rows),
        since_s=since_s,
        until_s=until_s,
        evidence=tuple(evidence),
    )


def _throttled(case: Case) -> Verdict | None:
    """Find GPUs that are often throttled by cooling or power supply; they need not have peers."""
    matrix = case.series.get(Metric.THROTTLE)
    if matrix is None:
        return None
    share = median(np.where(case.phases.active, matrix, np.nan))
    with np.errstate(invalid="ignore"):
        rows = share >= _OFTEN_THROTTLED
    if not rows.any():
        return None
    value = float(np.median(share[rows]))
    names, who = case.named(rows)
    text = f"{who}: throttled by heat or the power supply for {value:.0%} of the time"
    return case.verdict(
        Cause.SLOW,
        0.9,
        kind="throttled",
        culprits=case.workers(rows),
        nodes=case.whole_nodes(rows),
        evidence=(
            Evidence(text=text, metric=Signal.THROTTLE.value, value=value, expected=0.0, workers=names),
        ),
    )


def unexplained_difference(case: Case) -> Verdict | None:
    """Abstain if workers differ clearly from their peers although no rule explains it."""
    ways = [
        (Signal.BUSY, 1, _CLEARLY_BUSIER, _DOUBTFUL_Z, "longer SM activity than"),
        (Signal.WORK, 1, _CLEARLY_BUSIER, _DOUBTFUL_Z, "more tensor work than"),
        (Signal.WORK, -1, _CLEARLY_BUSIER, _DOUBTFUL_Z, "less tensor work than"),
        (Signal.CLOCK, -1, _CLEARLY_SLOWER, _DOUBTFUL_Z, "lower clocks than"),
        (Signal.UTIL, -1, _CLEARLY_LESS_UTIL, _DOUBTFUL_Z_OF_UTIL, "less to run than"),
    ]
    if Signal.BUSY not in case.deviations:
        ways += [(Signal.POWER, sign, _OTHER_POWER, case.rules.z, "other power than") for sign in (1, -1)]
    for signal, sign, least, z, what in ways:
        if signal not in case.deviations:
            continue
        apart = sign * case.deviations[signal].apart
        with np.errstate(invalid="ignore"):
            # Exclude workers that have changed but are now like their peers.
            rows = (case.above if sign > 0 else case.below)(signal, least, z) & (apart >= least)
        if rows.any():
            _, who = case.named(rows)
            most = float(apart[rows].max())
            differs_by = most if signal is Signal.UTIL else abs(float(np.expm1(sign * most)))
            why = f"{who}: {what} peers, by up to {differs_by:.0%}, and the available data show no cause"
            found = _two_groups(case, rows, why, case.evidence(signal, rows))
            # Timings of steps may prove equal work, but do not include time without anything to run.
            return replace(found, kind=UNEXPLAINED) if signal is Signal.UTIL else found
    return _other_clocks(case) or _busier_group(case)


def _busier_group(case: Case) -> Verdict | None:
    """Abstain if the GPUs of one group compute for much longer than those of the others."""
    busy, members = case.signals.get(Signal.BUSY), case.groups.members()
    if busy is None or len(members) < 2:
        return None
    level = median(busy)
    levels = np.array([middle(level[rows]) for rows in members])
    if not np.isfinite(levels).any():
        return None
    usual = float(np.nanmedian(np.sort(levels)[: (len(levels) + 1) // 2]))
    busiest = int(np.nanargmax(levels))
    times = float(levels[busiest] / usual) if usual > 0 else 1.0
    if not times >= _BUSIER_GROUP:
        return None
    rows = np.isin(np.arange(case.n), members[busiest])
    why = f"{case.groups.names[busiest]}: {times:.1f} times the SM activity of the other groups"
    names, _ = case.named(rows)
    item = Evidence(text=why, metric="busy", value=float(levels[busiest]), expected=usual, workers=names)
    return _two_groups(case, rows, why, item)


def _other_clocks(case: Case) -> Verdict | None:
    """Abstain if clocks are far below those of most GPUs of the job, whatever their roles."""
    clocks = case.signals.get(Signal.CLOCK)
    if clocks is None or case.groups.source.startswith(MODELS):
        # Models have different maximum clocks.
        return None
    level = median(clocks)
    usual = float(quantile(level[None, :], 0.75)[0])
    if not usual > 0:
        return None
    with np.errstate(invalid="ignore"):
        rows = level <= usual * np.exp(-_OTHER_CLOCK)
    if not rows.any():
        return None
    names, who = case.named(rows)
    own, usual = float(np.median(level[rows])), middle(level[~rows])
    why = f"{who}: {own:.0%} of the maximum clock, compared with {usual:.0%} on the other GPUs"
    item = Evidence(text=why, metric=Signal.CLOCK.value, value=own, expected=usual, workers=names)
    return _two_groups(case, rows, why, item)


def _two_groups(case: Case, rows: NDArray[np.bool_], why: str, item: Evidence) -> Verdict:
    names, _ = case.named(rows)
    return case.verdict(
        Cause.INCONCLUSIVE, 0.0, kind=TWO_GROUPS, roles=names, evidence=(item,), why_not=(why,)
    )
