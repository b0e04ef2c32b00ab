"""Find causes of slow steps from timings that the job itself records, which show where time is spent.

A what-if analysis computes, for each imbalance, how long a step would take without it. A step of synchronous
training takes as long as its slowest replica. A replica takes as long as its busiest pipeline stage, plus one
microbatch in each other stage to fill and drain the pipeline. Only computing time counts, since waiting for
others is a consequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.verdict import SUSPECT_BELOW, TWO_GROUPS, UNEXPLAINED, Cause, Evidence, Verdict
from slurm_gpu.text.hostlist import number_ranges
from slurm_gpu.text.units import counted, few

# Columns of a table of steps with one row per operation; other columns are ignored. In each row, dp_rank is
# the replica, stage the pipeline stage, and rank the launcher's (below 0 if unknown). Durations are in
# seconds, and mb_id is the microbatch. Only the optypes `forward-compute` and `backward-compute` count.
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "duration", "mb_id")
_FORWARD, _BACKWARD = "forward-compute", "backward-compute"
_LONGEST_S = 1e6
# Maximum number of operations for which a table may have places, most of them empty.
_MOST_SLOTS = 1 << 24
_GREATEST_RANK = 10_000_000
LEAST_STEPS = 4
# Minimum loss, as a share of a step's time; smaller losses are normal.
LEAST_LOSS = 0.03
# The time of a stage is a median of thousands of microbatches. If a stage takes 5 % more, a step loses at
# most half of that.
_LEAST_LOSS_OF_STAGE, _LEAST_STAGE = 0.015, 1.05
_SLOW_RATIO = 1.04
_SLOW_Z = 6.0
_LEAST_SIGMA = 0.006
# If factors per replica explain at least this share of the loss, factors per worker are not needed.
_AS_MUCH = 0.9
_SEQUENCE_CV, _SEQUENCE_CORRELATION = 0.08, 0.5
# If microbatches differ by little more than usual, their content must explain nearly all of the difference.
_LITTLE_CV, _LITTLE_CORRELATION = 0.045, 0.9
# Usual variation does not make a microbatch take longer than this, relative to the median of its worker.
_USUAL_LONGEST = 1.2
_MOST_SPANS = 8
_TWO_DECIMALS_BELOW = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Seconds of computation in arrays (replicas, stages, steps, microbatches), with NaN for missing data.

    `ranks` (replicas, stages, slots) contains the launcher's ranks; −1 if unknown. Tensor-parallel ranks of
    the same replica and stage compute for as long as the slowest of them. `numbers` contains the step
    numbers.
    """

    forward: Matrix
    backward: Matrix
    ranks: NDArray[np.intp]
    numbers: NDArray[np.intp]


def read_steps(columns: Mapping[str, Any]) -> StepSeries:
    """Convert the columns of a table, arrays of equal length; raise ValueError if a column is invalid."""
    lacking = [name for name in COLUMNS if name not in columns]
    if lacking:
        raise ValueError(f"steps: missing column {', '.join(lacking)}; required: {', '.join(COLUMNS)}")
    optype = np.asarray(columns["optype"])
    computing = np.asarray((optype == _FORWARD) | (optype == _BACKWARD), dtype=bool)
    if not computing.any():
        raise ValueError(
            f"steps: optype contains neither {_FORWARD} nor {_BACKWARD}: no row is a computation"
        )
    backward = optype[computing] == _BACKWARD
    index, shape, rank, numbers = [], [], np.array([]), np.array([])
    for name in ("dp_rank", "stage", "step", "mb_id", "rank"):
        column = np.asarray(columns[name])
        if column.shape != optype.shape:
            raise ValueError(f"steps: {name} has {column.size} rows, optype {optype.size}")
        if not np.issubdtype(column.dtype, np.integer):
            raise ValueError(f"steps: {name} must be whole numbers, not {column.dtype}")
        column = column[computing]
        if name == "rank":
            if column.max() > _GREATEST_RANK:
                raise ValueError(f"steps: rank must be at most {_GREATEST_RANK}, not {column.max()}")
            rank = np.where(column >= 0, column, -1)
        else:
            found, places = np.unique(column, return_inverse=True)
            index.append(places)
            shape.append(len(found))
            numbers = found if name == "step" else numbers
    seconds = np.asarray(columns["duration"], dtype=np.float64)[computing]
    if not ((seconds >= 0) & (seconds <= _LONGEST_S)).all():
        raise ValueError(
            f"steps: duration must be seconds, 0 to {_LONGEST_S:,.0f}, in each row that computes"
        )
    slot, ranks = _slots(index, (shape[0], shape[1]), rank.astype(np.intp))
    size, n_slots = int(np.prod(shape)), ranks.shape[2]
    if size * n_slots > min(64 * len(seconds) + 4096, max(_MOST_SLOTS, 4 * len(seconds))):
        raise ValueError(
            f"steps: {len(seconds)} rows are too few for {' × '.join(map(str, shape))} operations"
        )
    flat = np.ravel_multi_index(tuple(index), tuple(shape)) * n_slots + slot
    _reject_duplicates(flat, backward, index, ranks, slot)
    whole = (*shape, n_slots)
    return StepSeries(
        # If a stage has several chunks of the model (interleaving), they are computed one after the other.
        forward=_slowest(_summed(flat[~backward], seconds[~backward], whole)),
        backward=_slowest(_summed(flat[backward], seconds[backward], whole)),
        ranks=ranks,
        numbers=numbers.astype(np.intp),
    )


def _slots(
    index: list[NDArray[np.intp]], shape: tuple[int, int], rank: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the slot of the rank of each row, and the ranks (replicas, stages, slots).

    Each stage of a replica has one slot per rank.
    """
    place = index[0] * shape[1] + index[1]
    known, code = np.unique(rank, return_inverse=True)
    pairs, which = np.unique(place * len(known) + code, return_inverse=True)
    places = pairs // len(known)
    slot = np.arange(len(pairs)) - np.searchsorted(places, places)
    most = int(slot.max()) + 1
    if shape[0] * shape[1] * most > 64 * len(rank) + 4096:
        raise ValueError(f"steps: one pair of dp_rank and stage has {most} ranks, but others have far fewer")
    ranks = np.full((shape[0] * shape[1], most), -1, dtype=np.intp)
    ranks[places, slot] = known[pairs % len(known)]
    return slot[which], ranks.reshape(*shape, -1)


def _reject_duplicates(
    flat: NDArray[np.intp],
    backward: NDArray[np.bool_],
    index: list[NDArray[np.intp]],
    ranks: NDArray[np.intp],
    slot: NDArray[np.intp],
) -> None:
    """Raise ValueError if a worker has more rows per operation than its peers, which makes it appear slow."""
    each = np.bincount(2 * flat + backward)[2 * flat + backward]
    most = np.zeros(ranks.shape, dtype=np.intp)
    np.maximum.at(most, (index[0], index[1], slot), each)
    known = np.where(most > 0, most, np.iinfo(np.intp).max).min(axis=(0, 2))
    wrong = np.flatnonzero(each > known[index[1]])
    if wrong.size:
        row = int(wrong[0])
        rank = ranks[index[0][row], index[1][row], slot[row]]
        raise ValueError(
            f"steps: rank {rank} has {each[row]} rows for one operation of a microbatch, but others "
            f"of its stage have {known[index[1][row]]}: remove the duplicate rows"
        )


def _summed(flat: NDArray[np.intp], seconds: Matrix, shape: tuple[int, ...]) -> Matrix:
    size = int(np.prod(shape))
    sums = np.bincount(flat, seconds, size)
    return np.where(np.bincount(flat, minlength=size) > 0, sums, np.nan).reshape(shape)


def _slowest(seconds: Matrix) -> Matrix:
    """Return the seconds of the slowest rank of each stage, since the ranks wait for each other."""
    return np.asarray(np.fmax.reduce(seconds, axis=-1))


def step_seconds(cost: Matrix) -> float:
    """Return the mean duration of a step, given computing times `cost` in the shape of StepSeries."""
    work = np.nansum(cost, axis=3)
    one = work / np.maximum(np.isfinite(cost).sum(axis=3), 1)
    replica = (work + one.sum(axis=1, keepdims=True) - one).max(axis=1)
    return float(replica.max(axis=0).mean())


def judge_steps(steps: StepSeries) -> Verdict:
    """Judge a job by timings alone.

    If a worker is always slower, timings do not show whether it has more to do or its GPU is slow; the GPU's
    counters do.
    """
    cost = _cost(steps)
    n_replicas, n_stages, n_steps, _ = cost.shape
    coverage = float(np.isfinite(cost).mean())
    if n_steps < LEAST_STEPS or coverage < 0.5:
        known_steps = f"{counted(n_steps, 'step')} with {coverage:.0%} of the operations"
        why = f"{known_steps}; at least {LEAST_STEPS} steps with 50 % are required"
        return Verdict(cause=Cause.INCONCLUSIVE, confidence=0.0, why_not=(why,), coverage=coverage)
    levels = median(cost.reshape(n_replicas * n_stages, -1)).reshape(n_replicas, n_stages)
    ratio, stage = _ratios(levels, median(levels.T)), _faster_half(levels.T)
    usual = step_seconds(cost)
    if not usual > 0:
        why = "all durations are 0"
        return Verdict(cause=Cause.INCONCLUSIVE, confidence=0.0, why_not=(why,), coverage=coverage)
    base = Verdict(
        cause=Cause.HEALTHY, confidence=0.9, coverage=coverage, groups_by="stages of the step timings"
    )
    by_worker, worker = _lost(usual, cost / ratio[:, :, None, None]), _worker(ratio, steps)
    by_replica, replica = (
        _lost(usual, cost / _of_replicas(ratio)[:, None, None, None]),
        _replica(ratio, steps),
    )
    if replica is not None and by_replica >= _AS_MUCH * by_worker:
        # Factors per worker also remove noise, so they always explain a little more than factors per replica.
        worker = None
    by_stage = _lost(usual, cost * _equalizing_factors(stage)[None, :, None, None])
    found = [
        (by_worker, worker),
        (by_replica, replica),
        (by_stage, _stage(stage, n_replicas)),
        (_lost(usual, _equalized(cost, levels)), _sequence(steps)),
    ]
    known = [
        (lost, verdict)
        for lost, verdict in found
        if verdict is not None
        and lost >= (_LEAST_LOSS_OF_STAGE if verdict.kind == "pipeline stage" else LEAST_LOSS)
    ]
    apart = _two_groups(cost, levels, stage, steps, usual)
    if apart is not None and not any(lost >= _AS_MUCH * apart[0] for lost, _ in known):
        known = [apart]
    by_variation = _lost(usual, _without_variation(cost, levels))
    most = max(by_worker, by_replica, by_stage, by_variation)
    if not known and most >= LEAST_LOSS:
        if by_variation == most:
            which = "microbatches of each worker took equal time"
        elif by_stage == most:
            which = f"stages were equal; stage {int(np.nanargmax(stage))} takes longest"
        else:
            which = f"workers were equal; {_slowest_place(ratio, steps)} takes longest"
        known = [(most, _unexplained(f"steps would be {most:.0%} shorter if all {which}"))]
    if not known:
        text = f"no step would be more than {LEAST_LOSS:.0%} shorter if all workers and stages were equal"
        return _with_evidence(base, Evidence(text=text, metric="step_s", value=most, expected=0.0))
    lost, verdict = max(known, key=lambda item: item[0])
    text = f"without this, computing a step would take {usual * (1 - lost):.3f} s instead of {usual:.3f} s"
    return _with_evidence(
        verdict, Evidence(text=text, metric="step_s", value=usual, expected=usual * (1 - lost)), coverage
    )


def _cost(steps: StepSeries) -> Matrix:
    # If only one direction has data (inference, a truncated trace), only that direction is compared.
    both = np.isfinite(steps.forward) & np.isfinite(steps.backward)
    if both.any():
        return np.where(both, steps.forward + steps.backward, np.nan)
    return np.where(np.isfinite(steps.forward), steps.forward, steps.backward)


def _with_evidence(verdict: Verdict, evidence: Evidence, coverage: float | None = None) -> Verdict:
    known = verdict.coverage if coverage is None else coverage
    return replace(verdict, evidence=(*verdict.evidence, evidence), coverage=known)


def _lost(usual: float, cost: Matrix) -> float:
    return 1.0 - step_seconds(cost) / usual if usual > 0 else 0.0


def _equalizing_factors(stage: Matrix) -> Matrix:
    """Return the factor for each stage that makes its time equal to the mean of all stages."""
    known = stage[np.isfinite(stage)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(stage > 0, known.mean() / stage, 1.0) if known.size else np.ones(len(stage))


def _equalized(cost: Matrix, levels: Matrix) -> Matrix:
    return np.where(np.isfinite(cost), levels[:, :, None, None], np.nan)


def _without_variation(cost: Matrix, levels: Matrix) -> Matrix:
    """Return the times as they would be without unusual variation among a worker's microbatches.

    The maximum of many workers exceeds their median even if none is slow. If only rare operations are
    unusually long, only these are shortened. Otherwise, all times of a worker are set to its usual time.
    """
    usual = levels[:, :, None, None]
    shortened = np.where(usual > 0, np.minimum(cost, _USUAL_LONGEST * usual), cost)
    return shortened if _std(_residuals(shortened)) < _LITTLE_CV else _equalized(cost, levels)


def _ratios(levels: Matrix, usual: Matrix) -> Matrix:
    """Return the times of all places relative to the usual time of their stage; NaN without data."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(usual > 0, levels / usual, 1.0)
        return np.where(ratio > 0, ratio, np.nan)


def _faster_half(rows: Matrix) -> Matrix:
    """Return the median of the faster half of each row: any number of the others may be slow."""
    ordered = np.sort(rows, axis=1)
    counts = np.isfinite(ordered).sum(axis=1)
    kept = np.arange(rows.shape[1])[None, :] < ((counts + 1) // 2)[:, None]
    return median(np.where(kept, ordered, np.nan))


def _two_groups(
    cost: Matrix, levels: Matrix, stage: Matrix, steps: StepSeries, usual: float
) -> tuple[float, Verdict] | None:
    """Find places that clearly take longer than the faster ones of their stage, however many they are.

    Return the loss and a verdict that names them. Two replicas have no majority, and a large slow group may
    have more work, so the verdict accuses no GPU.
    """
    ratio = _ratios(levels, stage)
    noise = np.abs(_residuals(cost)).reshape(ratio.size, -1)
    # If most operations of a place take no time, its noise is unknown.
    noise[~np.isfinite(noise)] = np.nan
    error = 1.25 * MAD_TO_SIGMA * median(noise) / np.sqrt(np.maximum(np.isfinite(noise).sum(axis=1), 1))
    known = np.isfinite(ratio)
    known &= known.sum(axis=0) >= 2
    ordered = np.sort(np.log(ratio[known]))
    if ordered.size < 2:
        return None
    gaps = np.diff(ordered)
    cut = int(np.argmax(gaps))
    smallest = max(
        np.log(_SLOW_RATIO),
        _SLOW_Z * np.hypot(_LEAST_SIGMA, float(np.max(error, where=np.isfinite(error), initial=0.0))),
    )
    with np.errstate(invalid="ignore"):
        slow = known & (np.log(ratio) > ordered[cut])
    # The first of the faster group may also be far ahead of all others.
    if gaps[cut] < smallest or not slow.any():
        return None
    ratio /= float(np.median(ratio[known & ~slow]))
    lost = _lost(usual, cost / np.where(slow, ratio, 1.0)[:, :, None, None])
    if lost < LEAST_LOSS:
        return None
    places = np.argwhere(slow)
    ranks = sorted({rank for replica, place in places for rank in _ranks(steps, int(replica), int(place))})
    who = _spans("rank", ranks) if ranks else _spans("replica", sorted({int(place[0]) for place in places}))
    low, high = float(ratio[slow].min()), float(ratio[slow].max())
    least, most = (f"{value:.{1 if low >= _TWO_DECIMALS_BELOW else 2}f}" for value in (low, high))
    times = least if least == most else f"{least} to {most}"
    verb = "take" if who.startswith(("ranks", "replicas")) else "takes"
    why = f"{who} {verb} {times} times as long as the others, because of slow GPUs or more work"
    names = tuple(f"rank {rank}" for rank in ranks)
    item = Evidence(text=why, metric="compute_s", value=high, expected=1.0, workers=names)
    verdict = Verdict(
        cause=Cause.INCONCLUSIVE,
        kind=TWO_GROUPS,
        roles=names,
        confidence=0.0,
        evidence=(item,),
        why_not=(why,),
    )
    return lost, verdict


def _spans(what: str, numbers: Sequence[int]) -> str:
    """Return numbers as in "rank 3" or "ranks 0 and 5-8"."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    parts = list(number_ranges(map(str, numbers)))
    if len(parts) > _MOST_SPANS:
        return f"{what}s {few(parts, _MOST_SPANS)}"
    return f"{what}s {', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else f"{what}s {parts[0]}"


def _slowest_place(ratio: Matrix, steps: StepSeries) -> str:
    replica, stage = np.unravel_index(int(np.nanargmax(ratio)), ratio.shape)
    return _who(_ranks(steps, int(replica), int(stage)), int(replica))


def _unexplained(why: str) -> Verdict:
    """Return a verdict on a loss that no rule explains."""
    return Verdict(cause=Cause.INCONCLUSIVE, kind=UNEXPLAINED, confidence=0.0, why_not=(why,))


def _worker(ratio: Matrix, steps: StepSeries) -> Verdict | None:
    """Find workers that take longer for a typical microbatch than other workers of their stage."""
    std = MAD_TO_SIGMA * median(np.abs(ratio - 1.0).T)
    slow = (ratio > _SLOW_RATIO) & (ratio - 1.0 > _SLOW_Z * np.maximum(std, _LEAST_SIGMA))
    if not slow.any() or slow.sum() > 0.25 * ratio.size:
        return None
    places = np.argwhere(slow)
    ranks = [_ranks(steps, int(replica), int(stage)) for replica, stage in places]
    evidence = tuple(
        Evidence(
            text=f"{_who(here, int(replica))}, stage {stage}: {ratio[replica, stage]:.2f} times as long as "
            "others of its stage",
            metric="compute_s",
            value=float(ratio[replica, stage]),
            expected=1.0,
            workers=tuple(f"rank {rank}" for rank in here),
        )
        for here, (replica, stage) in zip(ranks, places, strict=True)
    )
    verdict = Verdict(
        cause=Cause.SLOW,
        kind="slower than its peers in each step",
        culprits=tuple(JobWorker(node="", device="", rank=rank) for here in ranks for rank in here),
        confidence=0.7,
        evidence=evidence,
        why_not=("timings alone do not show whether it has more to do in each step",),
    )
    if any(len(here) > 1 for here in ranks):
        why = "tensor-parallel ranks wait for each other while they compute, so only one of them may be slow"
        return verdict.limited(why, most=SUSPECT_BELOW - 0.05)
    return verdict


def _ranks(steps: StepSeries, replica: int, stage: int) -> tuple[int, ...]:
    """Return the known ranks of a stage of a replica."""
    return tuple(int(rank) for rank in steps.ranks[replica, stage] if rank >= 0)


def _who(ranks: tuple[int, ...], replica: int) -> str:
    if not ranks:
        return f"replica {replica}"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _of_replicas(ratio: Matrix) -> Matrix:
    """Return the duration of each replica relative to the median, or to the faster one of two replicas."""
    own = median(ratio)
    known = own[np.isfinite(own)]
    if not known.size:
        return np.ones(len(own))
    times = own / (np.median(known) if len(own) > 2 else known.min())
    return np.where(np.isfinite(times), times, 1.0)


def _replica(ratio: Matrix, steps: StepSeries) -> Verdict | None:
    """Find replicas that have more to do: all of their stages take longer by the same factor.

    A slow GPU affects only one stage.
    """
    n_replicas, n_stages = ratio.shape
    if n_replicas < 2 or n_stages < 2:
        return None
    times = _of_replicas(ratio)
    within = MAD_TO_SIGMA * median(np.abs(ratio - median(ratio)[:, None]))
    more = (times > _SLOW_RATIO) & (times - 1.0 > _SLOW_Z * np.maximum(within, _LEAST_SIGMA / 2))
    if not more.any() or 2 * more.sum() > n_replicas:
        return None
    names = tuple(f"replica {replica}" for replica in np.flatnonzero(more))
    most = float(times[more].max())
    text = (
        f"all {n_stages} stages of {few(names, 4)} take up to {most:.2f} times as long as in other replicas"
    )
    return Verdict(
        cause=Cause.IMBALANCE,
        kind="replica",
        roles=tuple(f"rank {rank}" for rank in steps.ranks[more].ravel() if rank >= 0),
        confidence=0.8,
        evidence=(Evidence(text=text, metric="compute_s", value=most, expected=1.0),),
    )


def _stage(stage: Matrix, n_replicas: int) -> Verdict | None:
    """Find the stage of a pipeline that has more work than the others."""
    known = np.flatnonzero(np.isfinite(stage))
    if len(known) < 2:
        return None
    busiest = int(known[np.argmax(stage[known])])
    others = float(np.median(stage[known[known != busiest]]))
    if not others > 0:
        return None
    times = float(stage[busiest] / others)
    if times < _LEAST_STAGE:
        return None
    where = "last" if busiest == len(stage) - 1 else "first" if busiest == 0 else f"number {busiest}"
    text = f"the {where} stage ({busiest}) computes {times:.2f} times as long as the others"
    verdict = Verdict(
        cause=Cause.IMBALANCE,
        kind="pipeline stage",
        roles=(f"stage {busiest}",),
        confidence=0.95,
        evidence=(Evidence(text=text, metric="compute_s", value=times, expected=1.0),),
    )
    if n_replicas > 1:
        return verdict
    return verdict.limited(
        "with one replica, a slow GPU of the stage has the same symptoms", most=SUSPECT_BELOW - 0.05
    )


def _sequence(steps: StepSeries) -> Verdict | None:
    """Find microbatches whose content lengthens both their forward and their backward pass."""
    forward, backward = _residuals(steps.forward), _residuals(steps.backward)
    std = _std(forward)
    correlation = _correlation(forward, backward)
    much = std >= _SEQUENCE_CV and correlation >= _SEQUENCE_CORRELATION
    if not (much or (std >= _LITTLE_CV and correlation >= _LITTLE_CORRELATION)):
        return None
    evidence = [
        Evidence(
            text=f"durations of one stage's microbatches vary by {std:.0%} (3 % is usual)",
            metric="forward_s",
            value=std,
            expected=0.03,
        ),
        Evidence(
            text=f"microbatches with a long forward pass have a long backward pass "
            f"(correlation {correlation:.2f}), because of their content",
            metric="forward_s × backward_s",
            value=correlation,
            expected=0.0,
        ),
    ]
    stages = forward.shape[1]
    if stages > 1 and np.isfinite(across := _correlation(forward[:, :1], forward[:, stages - 1 :])):
        text = f"durations in the last stage follow those in the first (correlation {across:.2f})"
        evidence.append(Evidence(text=text, metric="forward_s of stages", value=across, expected=0.0))
    return Verdict(cause=Cause.IMBALANCE, kind="sequence", confidence=0.95, evidence=tuple(evidence))


def _residuals(cost: Matrix) -> Matrix:
    """Return the relative excess of each time over the usual time of its worker and stage."""
    usual = median(cost.reshape(cost.shape[0] * cost.shape[1], -1)).reshape(*cost.shape[:2], 1, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(cost / usual - 1.0)


def _std(residuals: Matrix) -> float:
    known = residuals[np.isfinite(residuals)]
    return float(known.std()) if known.size else 0.0


def _correlation(one: Matrix, other: Matrix) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    a, b = one[both], other[both]
    if a.size < 8 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
