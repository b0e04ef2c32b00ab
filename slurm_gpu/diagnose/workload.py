"""Find workers or stages that have more work than others, and microbatches of unequal length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import split
from slurm_gpu.diagnose.hardware import LEAST_BUSY, LEAST_CLOCK
from slurm_gpu.diagnose.lockstep import relative_series
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import MODELS
from slurm_gpu.diagnose.phases import refresh_interval_s, surely_active
from slurm_gpu.diagnose.robust import Matrix, mean, median, middle, sigma, smooth
from slurm_gpu.diagnose.signals import Signal, without_common_changes
from slurm_gpu.diagnose.verdict import UNEXPLAINED, Cause, Evidence, Verdict

_LEAST_POWER, _GUESS = 0.04, 0.55
# The power of a few GPUs with equal work may permanently differ by a tenth.
_POWER_SIGMAS, _LASTING_POWER = 5.0, 0.09
# Stages with equal numbers of layers differ by 2 to 3 %. The first or last stage often has about 10 % more
# work for its embedding or loss. Such work costs as much time as other work, but is reported as a suspicion.
# If a stage has 6 % more work, its SM activity is higher by less, because spinning keeps some SMs active. Its
# power is higher by half as much, because a waiting GPU draws half the power.
_STAGE_TIMES, _STAGE_BUSY, _STAGE_TIMES_POWER, _SURE_STAGE_TIMES = 1.065, 1.03, 1.03, 1.12
_STAGE_LEAST = {Signal.BUSY: _STAGE_BUSY, Signal.WORK: _STAGE_TIMES, Signal.POWER: _STAGE_TIMES_POWER}
_STAGE_SIGMAS = 3.5
_REPLICA_POWER, _REPLICA_DIFFERS, _REPLICA_SIGMAS = 0.03, 0.005, 5.0
# Minimum standard deviation between GPUs with equal work; an estimate from a few GPUs is often too small.
_LEAST_POWER_STD = 0.009
# The power of two GPUs may permanently differ by a tenth, but a whole replica differs only by its work.
_LEAST_OF_REPLICA, _TENSOR_SIZES = 4, (8, 4, 2, 1)
# The first value of each pair applies to means over seconds, the second to bins of a timeline, which contain
# more steps. The times of microbatches of equal length vary by 2 to 3 %; means over several seconds vary
# at most half as much.
_SEQUENCE_STD = 0.022, 0.0135
# A job whose work varies by more than 1.5 % (half of 3 %) does not count as healthy: with short steps,
# unequal sequences also have little effect on means over seconds.
_UNUSUAL_STD = 0.015
_SEQUENCE_CORRELATION = 0.8
_LEAST_SAMPLES = 100
# Averaged over ten seconds, the relative power of GPUs with equal work varies by at most 1.1 %.
_SEQUENCE_STD_OF_POWER = 0.0115
_SAMPLE_S = 10.0
_BUSY_ALL_THE_TIME = 0.95
# Minimum standard deviation and correlation of the variations that neighbouring workers share, and the
# minimum correlation in standard errors.
_SHARED_STD, _SHARED, _SHARED_Z = 0.006, 0.5, 6.0
# Number of samples after which a remaining difference is not caused by the steps that a sample contains.
_LATER, _LASTING = 4, 0.3
# Number of samples in the means by which nodes are compared.
_SAMPLES = 4
_LEAST_OF_NODES, _LEAST_BLOCKS_OF_NODES, _LASTING_OF_NODES = 16, 8, (-0.4, 0.5)
_STD_OF_NODES, _UNUSUAL_STD_OF_NODES = (0.018, 0.01), (0.012, 0.0067)
# Nodes with equal work differ by half of this or less, since means over a node and many steps vary less than
# a GPU.
_POWER_OF_NODES = 0.012, 0.0065


def heavier(case: Case) -> Verdict | None:
    """Find workers that are busy for longer because they have more work; no GPU is at fault."""
    if Signal.WORK in case.deviations:
        signal = Signal.WORK
        with np.errstate(invalid="ignore"):
            more = case.level(Signal.WORK) >= 0.5 * case.level(Signal.BUSY)
        rows = case.above(Signal.BUSY, LEAST_BUSY, 5.0) & case.above(Signal.WORK, 0.02, 4.0) & more
        base = 0.85
    else:
        # Without tensor activity, power is the measure of work.
        signal = Signal.POWER
        rows = case.above(Signal.POWER, _LEAST_POWER)
        if Signal.BUSY in case.deviations:
            rows &= case.above(Signal.BUSY, LEAST_BUSY, 5.0)
        else:
            # The better half of a small group may be alike by chance, so the standard deviation of all groups
            # is used.
            with np.errstate(invalid="ignore"):
                usual = sigma(case.level(signal) - middle(case.level(signal)))
                rows &= case.has_changed(signal) | (
                    case.level(signal) >= max(_LASTING_POWER, _POWER_SIGMAS * usual)
                )
        rows = _minority(case, rows)
        if _others_slower(case, rows):
            return None
        base = 0.65 if Signal.BUSY in case.deviations or (rows & case.has_changed(signal)).any() else _GUESS
    if not rows.any():
        return None
    since_s, until_s = case.span(signal, rows)
    known = [s for s in (Signal.WORK, Signal.BUSY, Signal.POWER, Signal.CLOCK) if case.has_data(s, rows)]
    names = tuple(worker.name for worker in case.workers(rows))
    return case.verdict(
        Cause.IMBALANCE,
        case.scaled_strength(signal, rows, base) if signal is Signal.WORK else base,
        kind="workers",
        roles=names,
        since_s=since_s,
        until_s=until_s,
        evidence=tuple(case.evidence(one, rows) for one in known),
    )


def _minority(case: Case, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep rows that are a minority of their group, because either of two equal halves may be unusual."""
    kept = np.zeros(case.n, dtype=bool)
    for members in case.groups.members():
        kept[members] = rows[members] & (2 * rows[members].sum() < case.judged[members].sum())
    return kept


def _others_slower(case: Case, rows: NDArray[np.bool_]) -> bool:
    """Return whether the other workers have lower clocks, which explains why they draw less power."""
    clocks = case.signals.get(Signal.CLOCK)
    if clocks is None or not rows.any() or rows.all():
        return False
    level = median(clocks)
    return middle(level[~rows]) < middle(level[rows]) * (1 - LEAST_CLOCK)


def stages(case: Case) -> Verdict | None:
    """Find a group that is busier and does more work than all other groups, which wait for it."""
    groups = case.groups
    if len(groups.names) < 2 or groups.source.startswith(MODELS):
        return None
    each, levels = {}, {}
    for signal in (Signal.BUSY, Signal.WORK, Signal.POWER):
        rows = case.signals.get(signal)
        if rows is not None:
            each[signal] = median(without_common_changes(rows, groups))
            levels[signal] = np.array([middle(each[signal][members]) for members in groups.members()])
    asked: list[Signal] = [one for one in (Signal.BUSY, Signal.WORK) if one in levels]
    asked = asked or list(levels)
    if not asked or any(not np.isfinite(levels[signal]).all() for signal in asked):
        return None
    busiest = int(np.argmax(levels[asked[-1]]))
    evidence, times = [], 1.0
    for signal in asked:
        others = np.delete(levels[signal], busiest)
        own, usual = float(levels[signal][busiest]), float(np.median(others))
        least = _STAGE_LEAST[signal] if Signal.WORK in asked or signal is Signal.POWER else _SURE_STAGE_TIMES
        apart = _apart(case, each[signal], busiest, others)
        if not usual > 0 or own / usual < least or own - usual < _STAGE_SIGMAS * apart:
            return None
        times = own / usual
        text = f"{groups.names[busiest]}: {signal.value} is {own / usual:.2f} times that of the other groups"
        evidence.append(Evidence(text=text, metric=signal.value, value=own, expected=usual))
    if _others_slower(case, case.groups.of == busiest):
        return None
    return case.verdict(
        Cause.IMBALANCE,
        0.75 if Signal.WORK in asked and times >= _SURE_STAGE_TIMES else 0.55,
        kind="pipeline stage",
        roles=(groups.names[busiest],),
        evidence=tuple(evidence),
    )


def _apart(case: Case, each: Matrix, busiest: int, others: Matrix) -> float:
    """Return how much groups with equal work differ, as a standard deviation.

    `each` contains the level of each worker. The result combines the differences between the other groups
    with the differences between members of a group. The differences between members are pooled over all
    groups, because an estimate from only four workers is often far too small.
    """
    members = case.groups.members()
    levels = [each[rows] for rows in members]
    within = np.concatenate([row - middle(row) for row in levels])
    within = within[np.isfinite(within)]
    std = float(np.sqrt((within**2).sum() / max(len(within) - len(members), 1)))
    counts = [len(rows) for group, rows in enumerate(members) if group != busiest]
    error = 1.25 * std * np.sqrt(1 / len(members[busiest]) + 1.5 / sum(counts))
    return float(np.hypot(others.std(ddof=len(others) > 1), error))


def replicas(case: Case) -> Verdict | None:
    """Find replicas whose workers all draw more power, because they have more work in every stage of a step.

    This check is used only if SM activity is unknown. The power of individual GPUs with equal work differs by
    up to a tenth, but these differences average out over a replica. The ranks of a replica are derived from
    the stages and from consecutive tensor-parallel ranks.
    """
    power, members = case.signals.get(Signal.POWER), case.groups.members()
    each = len(members[0])
    if Signal.BUSY in case.signals or power is None or any(len(rows) != each for rows in members):
        return None
    logs = np.log(np.maximum(power, 1e-6))
    courses = np.stack([logs[rows] - median(logs[rows].T) for rows in members])
    n_blocks = courses.shape[2]
    for tensor in _TENSOR_SIZES:
        if each % tensor or each < 2 * tensor or tensor * len(members) < _LEAST_OF_REPLICA:
            continue
        each_part = (
            courses.reshape(len(members), each // tensor, tensor, n_blocks)
            .transpose(1, 0, 2, 3)
            .reshape(each // tensor, -1, n_blocks)
        )
        parts = np.stack([mean(part) for part in each_part])
        known = np.isfinite(parts)
        means = mean(parts)
        within = (parts - means[:, None])[known]
        if (known.mean(axis=1) < 0.75).any():
            continue
        std = max(float(np.sqrt((within**2).sum() / max(within.size - len(means), 1))), _LEAST_POWER_STD)
        # If samples contain parts of long steps, the samples of each node contain different parts.
        in_time = np.stack([mean(part.T) for part in each_part]) - means[:, None]
        sampling = np.sqrt(mean(mean(in_time**2)[None, :])[0] / n_blocks)
        error = float(np.hypot(np.hypot(std / np.sqrt(parts.shape[1]), _REPLICA_DIFFERS), sampling))
        order = np.sort(means)
        # The better half is the reference, since half of an even number of replicas may have more work.
        usual = float(np.median(order[: (len(order) + 1) // 2]))
        more = (means - usual >= max(_REPLICA_POWER, _REPLICA_SIGMAS * error)) & (
            np.where(known, parts, np.inf).min(axis=1) > usual - _REPLICA_SIGMAS * std
        )
        if not more.any() or 2 * more.sum() > len(means):
            continue
        rest = means[~more]
        if means[more].min() - rest.max() < _REPLICA_SIGMAS / 2 * error:
            # No clear gap separates these replicas from the others: power varies gradually across replicas.
            continue
        rows = np.concatenate([part.reshape(-1, tensor)[more].ravel() for part in members])
        return _replica(case, np.isin(np.arange(case.n), rows), float(means[more].mean() - usual), std)
    return None


def _replica(case: Case, rows: NDArray[np.bool_], level: float, std: float) -> Verdict:
    names = tuple(worker.name for worker in case.workers(rows))
    text = f"{len(names)} workers of complete replicas: {level:.1%} more power than others of their stages"
    verdict = case.verdict(
        Cause.IMBALANCE,
        _GUESS,
        kind="replica",
        roles=names,
        evidence=(Evidence(text=text, metric="power", value=level, expected=std, workers=names),),
    )
    return verdict.limited("without SM activity, power is the only evidence", most=_GUESS)


def sequences(case: Case) -> Verdict | None:
    """Find sequences of unequal length, because of which the busiest worker changes constantly.

    The signals busy and work then vary together on each worker, unlike measurement noise. Workers on the same
    node and in the same group are compared first, since they share a clock.
    """
    busy, tensor = case.series.get(Metric.SM_ACTIVE), case.series.get(Metric.TENSOR)
    if busy is None or tensor is None:
        return _sequences_by_power(case)
    in_bins = case.series.width_s > _SAMPLE_S
    found = _variation(case, busy, tensor, case.judged, _SEQUENCE_STD[in_bins])
    if found is not None:
        # With unequal sequences, the work of all workers varies.
        others = case.judged & (np.arange(case.n) != found.most)
        if _variation(case, busy, tensor, others, _SEQUENCE_STD[in_bins]) is not None:
            return _sequence(case, "workers", found.std, found.correlation)
        who = case.series.workers[found.most].name if case.judged.sum() > 2 else "one of two workers"
        why = f"the work of {who} varies by {found.std:.0%}: it may evaluate for all, or have more work"
        return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=UNEXPLAINED, why_not=(why,))
    one, other = (_node_series(case, matrix) for matrix in (busy, tensor))
    both = np.isfinite(one) & np.isfinite(other)
    std_of_nodes = min(_std_of_nodes(one), _std_of_nodes(other))
    of_nodes = _correlation(one[both], other[both]) if both.sum() >= _LEAST_OF_NODES else 0.0
    traffic = _traffic_of_nodes(case)
    nodes_vary = of_nodes >= _SEQUENCE_CORRELATION and not _is_opposite(one, traffic)
    if nodes_vary and std_of_nodes >= _STD_OF_NODES[in_bins] and _is_independent(one):
        return _sequence(case, "nodes", std_of_nodes, of_nodes)
    std, correlation = _shared_variation(case, busy, tensor)
    if std >= _SHARED_STD:
        return _sequence(case, "pairs of neighbouring workers", std, correlation)
    found = _variation(case, busy, tensor, case.judged, _UNUSUAL_STD)
    if found is not None:
        who, std = "workers", found.std
    elif (
        nodes_vary
        and std_of_nodes >= max(_UNUSUAL_STD_OF_NODES[in_bins], _std_of_nodes(traffic))
        and _autocorrelation(one, 1) <= _LASTING_OF_NODES[1]
    ):
        # With short steps, unequal sequences have little effect on a mean over 40 s.
        who, std = "nodes", std_of_nodes
    else:
        return None
    why = f"the work of the {who} varies by {std:.1%}: sequences may be unequal, or steps irregular"
    return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=UNEXPLAINED, why_not=(why,))


def _traffic_of_nodes(case: Case) -> Matrix:
    """Return the _node_series of traffic; its rows differ if nodes sample long steps at different times."""
    link = next((one for one in (Metric.NVLINK, Metric.PCIE) if case.series.get(one) is not None), None)
    return np.full((1, 1), np.nan) if link is None else _node_series(case, case.series.values[link])


def _is_opposite(nodes: Matrix, traffic: Matrix) -> bool:
    """Return whether nodes send less when they compute more, since samples cover different parts of steps."""
    both = np.isfinite(nodes) & np.isfinite(traffic)
    return (
        both.sum() >= _LEAST_OF_NODES and _correlation(nodes[both], traffic[both]) <= -_SEQUENCE_CORRELATION
    )


@dataclass(frozen=True, slots=True)
class _Variation:
    """The variation of work relative to peers; the worker in row `most` varies most."""

    std: float
    correlation: float
    most: int


def _variation(
    case: Case, busy: Matrix, tensor: Matrix, kept: NDArray[np.bool_], least: float
) -> _Variation | None:
    """Find whether SM activity and tensor work vary together on each of these workers."""
    # A single lasting change is not caused by sequences.
    one, other = (_without_change(relative_series(case, matrix, kept)) for matrix in (busy, tensor))
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < _LEAST_SAMPLES:
        return None
    a, b = one[both], other[both]
    std, correlation = float(min(a.std(), b.std())), _correlation(a, b)
    if std < least or correlation < _SEQUENCE_CORRELATION:
        return None
    squares = np.where(both, other, 0.0) ** 2
    return _Variation(std, correlation, int(np.argmax(squares.sum(axis=1) / np.maximum(both.sum(axis=1), 1))))


def _shared_variation(case: Case, one: Matrix, other: Matrix) -> tuple[float, float]:
    """Return how much neighbours vary together, as a standard deviation, and their correlation.

    Workers of a tensor-parallel group process the same sequences, whereas noise and the times of equally long
    microbatches vary independently. Both results are 0 without a clear correlation.
    """
    n = max(1, round(max(_SAMPLE_S, refresh_interval_s(case.series)) / case.series.width_s))
    one, other = (_without_change(smooth(relative_series(case, rows), n, 0.5)) for rows in (one, other))
    there = [
        rows
        for node in case.series.nodes
        for members in case.groups.members()
        if (rows := np.intersect1d(case.series.on(node), members[case.judged[members]])).size >= 4
    ]
    if not there or not _autocorrelation(one, _LATER) <= _LASTING:
        return 0.0, 0.0
    a, b = (np.concatenate([rows[first : rows.size // 2 * 2 : 2] for rows in there]) for first in (0, 1))
    products = np.stack([one[a] * other[b], one[b] * other[a]])
    known = np.isfinite(products)
    if known.sum() < _LEAST_SAMPLES:
        return 0.0, 0.0
    # A single event affects only a few of the pairs.
    shared = middle(mean(np.concatenate(products, axis=1)))
    whole = np.sqrt(middle(mean(one**2)) * middle(mean(other**2)))
    least = max(_SHARED, _SHARED_Z / np.sqrt(known[0].sum()))
    return (float(np.sqrt(shared)), shared / whole) if shared > least * whole else (0.0, 0.0)


def _correlation(a: Matrix, b: Matrix) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def _sequence(case: Case, who: str, std: float, correlation: float) -> Verdict:
    text = f"the work of {who} varies independently by {std:.0%}, in both SM activity and tensor work"
    return case.verdict(
        Cause.IMBALANCE,
        0.7,
        kind="sequence",
        evidence=(
            Evidence(text=text, metric="tensor", value=std, expected=0.02),
            Evidence(
                text=f"SM activity and tensor work vary together (correlation {correlation:.2f})",
                metric="busy × work",
                value=correlation,
                expected=0.0,
            ),
        ),
    )


def _sequences_by_power(case: Case) -> Verdict | None:
    """Find sequences of unequal length by power if SM activity is unknown.

    A waiting GPU draws half the power, while the power of GPUs with equal work varies little. Unequal
    sequences change power independently in each sample, whereas temperature and slow loaders change it
    gradually.
    """
    power, util = case.series.get(Metric.POWER), case.job(Signal.UTIL)
    if power is None or util is None or not middle(util) >= _BUSY_ALL_THE_TIME:
        return None
    n = max(1, round(max(_SAMPLE_S, refresh_interval_s(case.series)) / case.series.width_s))
    own = smooth(relative_series(case, power), n)
    own = own - median(own)[:, None]
    std, who = middle(np.array([sigma(row) for row in own])), "the power of each GPU"
    if not (
        std >= _SEQUENCE_STD_OF_POWER
        and np.isfinite(own).sum() >= _LEAST_SAMPLES
        and _autocorrelation(own, _LATER) <= _LASTING
    ):
        nodes = _node_series(case, power)
        std, who = _std_of_nodes(nodes), "the power of each node"
        least = _POWER_OF_NODES[case.series.width_s > _SAMPLE_S]
        if (
            np.isfinite(nodes).sum() < _LEAST_OF_NODES
            or not std >= least
            or not _is_independent(nodes)
            or _is_opposite(nodes, _traffic_of_nodes(case))
        ):
            std, who = _shared_variation(case, power, power)[0], "the power of pairs of neighbouring GPUs"
            if std < _SHARED_STD:
                return None
    text = f"{who} varies by {std:.1%}, independently in each sample, while all GPUs are busy"
    verdict = case.verdict(
        Cause.IMBALANCE,
        0.55,
        kind="sequence",
        evidence=(Evidence(text=text, metric="power", value=std, expected=0.01),),
    )
    return verdict.limited("without SM activity, power is the only evidence", most=0.55)


def _autocorrelation(own: Matrix, later: int) -> float:
    """Return the autocorrelation of the rows at a lag of `later` columns; infinite if unknown."""
    products = own[:, later:] * own[:, :-later]
    both, known = np.isfinite(products), np.isfinite(own)
    if both.sum() < 2 * _LEAST_BLOCKS_OF_NODES or not (own[known] ** 2).mean() > 0:
        return float("inf")
    return float(products[both].mean() / (own[known] ** 2).mean())


def _is_independent(nodes: Matrix) -> bool:
    """Return whether blocks differ independently.

    A fault persists, so the blocks that it affects are similar. A step that is split between two blocks
    causes opposite deviations in them.
    """
    low, high = _LASTING_OF_NODES
    return low <= _autocorrelation(nodes, 1) <= high


def _node_series(case: Case, matrix: Matrix) -> Matrix:
    """Return the series of each node relative to the group's other nodes, as means over 40 s or more.

    If a tensor-parallel group fills a node, all workers of the node process the same sequence. Nodes take
    samples at different moments, so an excess in one sample is missing from the next. With more averaged
    samples, this error falls in proportion to their number, whereas the effect of sequences falls only in
    proportion to the square root of that number. Bins near a pause are excluded, since nodes show it at
    different times.
    """
    n = max(1, round(_SAMPLES * max(_SAMPLE_S, refresh_interval_s(case.series)) / case.series.width_s))
    active = surely_active(case.phases, case.series)
    found: list[Matrix] = []
    for members in case.groups.members():
        units = []
        for node in case.series.nodes:
            rows = np.intersect1d(case.series.on(node), members)
            if rows.size == 0:
                continue
            part = np.where(active, matrix[rows], np.nan)
            usual = median(part)[:, None]
            with np.errstate(invalid="ignore", divide="ignore"):
                relative = np.where(usual > 0.02, part / usual, np.nan)
            units.append(median(smooth(relative, n, 0.5).T))
        if len(units) >= 2:
            own = np.array(units)
            own = own - median(own.T)
            good = np.isfinite(own)
            usual = np.where(good, own, 0.0).sum(axis=1) / np.maximum(good.sum(axis=1), 1)
            found += list(own - usual[:, None])
    return np.array(found) if found else np.full((1, 1), np.nan)


def _std_of_nodes(nodes: Matrix) -> float:
    """Return the standard deviation between nodes in the median block.

    Single events such as an evaluation have little effect on the median.
    """
    good = np.isfinite(nodes)
    known = good.sum(axis=0) >= 2
    if known.sum() < _LEAST_BLOCKS_OF_NODES:
        return float("nan")
    squares = np.where(good, nodes, 0.0) ** 2
    return middle(np.sqrt(squares.sum(axis=0)[known] / good.sum(axis=0)[known]))


def _without_change(own: Matrix) -> Matrix:
    """Remove from each row the change of level that explains the most variance."""
    found = split(own)
    since = np.arange(own.shape[1]) >= found.at[:, None]
    return own - np.where(since, found.after[:, None], found.before[:, None])
