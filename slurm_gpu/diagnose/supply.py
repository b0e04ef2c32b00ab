"""Find bottlenecks in the supply of data to GPUs: slow links between GPUs, or late data from hosts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import noise
from slurm_gpu.diagnose.hardware import LEAST_CLOCK
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import median, middle, quantile, sigma
from slurm_gpu.diagnose.signals import BLOCK_S, LEAST_BLOCKS, Signal
from slurm_gpu.diagnose.trend import LINKS
from slurm_gpu.diagnose.verdict import SUSPECT_BELOW, TWO_GROUPS, Cause, Evidence, Verdict

_LEAST_LINK = 0.12
_LINK_ENDS = 2
_KNOWN_NODES = 4
# Maximum InfiniBand traffic of a node that does not use InfiniBand, and minimum additional traffic over its
# other network, as shares of the InfiniBand traffic of the other nodes.
_UNUSED, _USED_INSTEAD = 0.1, 0.5
_LEAST_UTIL, _UTIL_Z = 0.05, 5.0
_UTIL_OF_ALL = 0.85
_SAME_LEVEL = 0.02
_UTIL_IRREGULAR, _IRREGULAR = 0.97, 0.015
# Differences that indicate another role: work as a logarithm (−0.7 means half as much), memory as a fraction.
_OTHER_WORK, _OTHER_MEMORY = -0.7, 0.1
_LACKS_AT_TIMES = 0.04
# Minimum share of the time for which the job waits for GPUs that lack input in turn.
_LOST_IN_TURN = 0.05
_NEARLY_ALWAYS, _LEAST_BEHIND = 0.6, 3
# Number of standard deviations that random deviations do not reach, even for the last of many workers.
_BY_CHANCE = 5.5
# If at least this share of a stage's workers lacks input in turn, all its workers are assumed to lack input.
_MANY = 0.25
_CPU_FULL = 0.85
_LASTS_S = 75.0
# Initial computing time in which GPUs have less to run, because kernels are compiled and caches are filled.
_BEGINS_S = 120.0


def links(case: Case) -> Verdict | None:
    """Find links that carry less than peers' links in the same steps, because traffic uses another path."""
    for signal in LINKS:
        rows = case.below(signal, _LEAST_LINK) & ~case.below(Signal.UTIL, 0.1)
        with np.errstate(invalid="ignore"):
            if rows.any():
                # A link that carried more than its peers' links before, and carries as much now, is not slow.
                rows &= case.deviations[signal].apart <= -0.5 * _LEAST_LINK
            # A worker that also does less, or sends less over other links, is not in step with its peers.
            for other in (Signal.WORK, Signal.NVLINK, Signal.PCIE):
                if other is not signal:
                    rows &= ~(case.level(other) <= 0.5 * case.level(signal))
        if _carries_other_things(case, signal):
            rows &= case.has_changed(signal)
        if not rows.any() or rows.sum() > 0.5 * case.judged.sum():
            continue
        since_s, until_s = case.span(signal, rows)
        evidence = [case.evidence(signal, rows)]
        evidence += [
            case.evidence(other, instead)
            for other in LINKS
            if other is not signal and (instead := case.above(other, _LEAST_LINK) & rows).any()
        ]
        between = tuple(dict.fromkeys(worker.node for worker in case.workers(rows)))
        return case.verdict(
            Cause.COMMUNICATION,
            case.scaled_strength(signal, rows, 0.85),
            kind=signal.value,
            culprits=case.workers(rows) if signal in (Signal.NVLINK, Signal.PCIE) else (),
            nodes=between,
            since_s=since_s,
            until_s=until_s,
            evidence=tuple(evidence),
        )
    return _by_sockets(case)


def _carries_other_things(case: Case, signal: Signal) -> bool:
    """Return whether nodes may permanently differ in a signal without a fault.

    A node may write logs or read more files over the same network. In a job of few nodes, the normal
    differences are unknown.
    """
    if signal is Signal.INFINIBAND:
        return len(case.series.nodes) < _KNOWN_NODES
    return signal is Signal.NETWORK


def _by_sockets(case: Case) -> Verdict | None:
    """Find nodes whose network carries the traffic for which other nodes use InfiniBand.

    All nodes of the job are compared, because a stage that occupies one node has no peers. The comparison is
    valid because all nodes take part in the same steps.
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
    text = f"{', '.join(named)}: InfiniBand is unused, and another network carries its traffic"
    value = float(np.median(ib[odd]))
    return case.verdict(
        Cause.COMMUNICATION,
        0.85,
        kind="sockets",
        nodes=named,
        evidence=(Evidence(text=text, metric=Signal.INFINIBAND.value, value=value, expected=usual),),
    )


def starved_some(case: Case) -> Verdict | None:
    """Find GPUs that have nothing to run for part of the time, while the GPUs that wait for them spin."""
    rows = case.below(Signal.UTIL, _LEAST_UTIL, _UTIL_Z) & ~_of_another_role(case) & _for_long(case)
    work = case.level(Signal.WORK)
    with np.errstate(invalid="ignore"):
        # A worker that waits for input does as much work as its peers; a worker that waits for an evaluation
        # does less.
        rows &= ~(work - middle(work[case.judged & ~rows]) <= 0.5 * case.level(Signal.UTIL))
    if not rows.any() or rows.sum() > 0.5 * case.judged.sum():
        return None
    since_s, until_s = case.span(Signal.UTIL, rows)
    evidence = [case.evidence(Signal.UTIL, rows)]
    if case.judged.sum() == 2 and Signal.WORK not in case.deviations and case.series.width_s > BLOCK_S:
        why = f"{evidence[0].text}: it may lack input, or wait while the other GPU computes"
        names, _ = case.named(rows)
        return case.verdict(
            Cause.INCONCLUSIVE, 0.0, kind=TWO_GROUPS, roles=names, evidence=tuple(evidence), why_not=(why,)
        )
    hosts = case.above(Signal.CPU, 0.1, 4.0) & rows
    if hosts.any():
        evidence.append(case.evidence(Signal.CPU, hosts))
    wanting = rows | _in_turn(case)
    there = {worker.node for worker in case.workers(wanting)}
    if len(there) == 1 < len(case.series.nodes) and not _whole_stage(case, wanting):
        rows = wanting
    elif wanting.sum() > rows.sum() and wanting.sum() >= max(
        3.0, _MANY * case.judged.sum() / _n_groups(case)
    ):
        if _begins(case):
            return None
        # If all data loaders are too slow, GPUs lack input in turn, and the GPUs that lack it now are not at
        # fault.
        text = f"at different times, {wanting.sum()} GPUs have nothing to run"
        share = float(wanting.sum() / max(1, case.judged.sum()))
        evidence.append(Evidence(text=text, metric="util", value=share, expected=0.0))
        return case.verdict(Cause.STARVATION, 0.7, kind="all", since_s=since_s, evidence=tuple(evidence))
    nodes = case.whole_nodes(rows)
    verdict = case.verdict(
        Cause.STARVATION,
        0.85 if hosts.any() else 0.7,
        kind="node" if nodes else "workers",
        culprits=case.workers(rows),
        nodes=nodes,
        since_s=since_s,
        until_s=until_s,
        evidence=tuple(evidence),
    )
    if (case.below(Signal.CLOCK, LEAST_CLOCK) & rows).any():
        why = "their clocks are also lower, possibly because the GPUs are idle"
        verdict = verdict.limited(why, most=SUSPECT_BELOW)
    return verdict


def _for_long(case: Case) -> NDArray[np.bool_]:
    """Mark workers that lack input for longer than a checkpoint or an evaluation by one worker takes.

    Times between two short pauses do not count. The times just before and after the deviation count in
    proportion to the input that was missing.
    """
    found = case.deviations.get(Signal.UTIL)
    if found is None:
        return np.zeros(case.n, dtype=bool)
    blocks = np.zeros(case.n)
    for row in np.flatnonzero(case.below(Signal.UTIL, _LEAST_UTIL, _UTIL_Z)):
        first, stop = int(found.first[row]), int(found.stop[row])
        inside = found.ratios[row, first:stop]
        # Blocks without data are unknown rather than normal.
        blocks[row] = stop - first - np.count_nonzero(inside > 0.5 * found.level[row])
        for neighbours in (found.ratios[row, :first][::-1], found.ratios[row, stop:]):
            enough = np.flatnonzero(neighbours > -_LEAST_UTIL)
            shares = neighbours[: enough[0] if enough.size else None] / found.level[row]
            blocks[row] += np.clip(shares[np.isfinite(shares)], 0.0, 1.0).sum()
    return np.asarray(blocks * case.bins_of_block * case.series.width_s >= _LASTS_S)


def _of_another_role(case: Case) -> NDArray[np.bool_]:
    """Mark workers with another role: they do far less than their peers, or use far less memory.

    A worker that waits for data does as much per step as its peers.
    """
    memory = case.series.get(Metric.MEM_USED)
    less = np.zeros(case.n, dtype=bool)
    with np.errstate(invalid="ignore"):
        if memory is not None:
            used = median(memory)
            for members in case.groups.members():
                usual = middle(used[members])
                less[members] = (used[members] < usual - _OTHER_MEMORY) & (used[members] < 0.67 * usual)
        return np.asarray(less | (case.level(Signal.WORK) <= _OTHER_WORK))


def _in_turn(case: Case) -> NDArray[np.bool_]:
    """Mark workers that sometimes have less to run than the busiest workers at the same time."""
    util = case.signals[Signal.UTIL]
    lacking = quantile(util.T, 0.95) - util
    with np.errstate(invalid="ignore"):
        return np.asarray(case.judged & (quantile(lacking, 0.85) >= _LACKS_AT_TIMES))


def _starved_in_turn(case: Case) -> Verdict | None:
    """Find jobs in which some GPU nearly always has nothing to run, because all data loaders are too slow."""
    util = case.signals[Signal.UTIL]
    known = util[:, np.isfinite(util).any(axis=0)]
    late = known[case.judged, -max(LEAST_BLOCKS * 3, known.shape[1] // 3) :]
    if late.shape[0] < _LEAST_BEHIND or late.shape[1] < LEAST_BLOCKS * 3:
        return None
    lacking = np.nan_to_num(quantile(late.T, 0.95)[None, :] - late)
    # By chance, the last of many workers is far behind.
    least = max(_LACKS_AT_TIMES, _BY_CHANCE * float(np.nanmedian([sigma(block) for block in late.T])))
    behind = lacking.max(axis=0) >= least
    share, n_behind = float(behind.mean()), len(np.unique(lacking.argmax(axis=0)[behind]))
    if share < _NEARLY_ALWAYS or n_behind < _LEAST_BEHIND or lacking.max(axis=0).mean() < _LOST_IN_TURN:
        return None
    text = f"for {share:.0%} of the time, at least one GPU has nothing to run; {n_behind} GPUs take turns"
    evidence = (Evidence(text=text, metric="util", value=share, expected=0.0),)
    return case.verdict(Cause.STARVATION, 0.65, kind="all", evidence=evidence)


def _irregular(case: Case, level: float) -> bool:
    """Return whether the utilisation of all GPUs is reduced by irregular amounts.

    Gaps between kernels are the same in each step, whereas the delay of input varies.
    """
    util = case.job(Signal.UTIL)
    return util is not None and level < _UTIL_IRREGULAR and float(noise(util[None, :])[0]) >= _IRREGULAR


def _begins(case: Case) -> bool:
    return case.active_blocks * case.bins_of_block * case.series.width_s < _BEGINS_S


def _n_groups(case: Case) -> int:
    return len(case.groups.names)


def _whole_stage(case: Case, rows: NDArray[np.bool_]) -> bool:
    """Return whether these workers are nearly all of a stage, such as the first, which reads all input."""
    return _n_groups(case) > 1 and any(rows[members].mean() >= 0.75 for members in case.groups.members())


def starved_all(case: Case) -> Verdict | None:
    """Find jobs in which all GPUs, or those of the stage that reads input, often have nothing to run."""
    rows, cpu = case.signals.get(Signal.UTIL), case.job(Signal.CPU)
    if rows is None:
        return None
    levels = [middle(median(rows[members].T)) for members in case.groups.members()]
    known = [level for level in levels if np.isfinite(level)]
    if not known or not ((level := min(known)) < _UTIL_OF_ALL or _irregular(case, level)):
        return _starved_in_turn(case)
    own = median(rows[case.groups.members()[levels.index(level)]])
    if own.size == 2 and own.max() >= _UTIL_IRREGULAR:
        # The median of two GPUs is low even if only one of them lacks input.
        return _starved_in_turn(case)
    alike = len(known) == len(levels) and max(known) - level < _SAME_LEVEL
    who = "all GPUs" if alike else f"all GPUs of {case.groups.names[levels.index(level)]}"
    text = f"{who} have nothing to run for {1 - level:.0%} of the time"
    evidence = [Evidence(text=text, metric="util", value=level, expected=1.0)]
    full = cpu is not None and middle(cpu) >= _CPU_FULL
    if not full and _begins(case):
        why = f"{text}, which is normal in the first {_BEGINS_S:.0f} s of computing"
        return case.verdict(Cause.INCONCLUSIVE, 0.0, evidence=tuple(evidence), why_not=(why,))
    if cpu is not None and full:
        text = f"CPUs are {middle(cpu):.0%} busy"
        evidence.append(Evidence(text=text, metric="cpu", value=middle(cpu), expected=0.5))
    return case.verdict(Cause.STARVATION, 0.85 if full else 0.55, kind="all", evidence=tuple(evidence))
