"""Find causes of slow steps from the timings of operations that the job itself records.

A what-if analysis computes, for each imbalance, how long a step would take without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.steps.table import StepSeries
from slurm_gpu.diagnose.steps.what_if import (
    LITTLE_CV,
    equalized,
    equalizing_factors,
    loss,
    residuals,
    std_of,
    step_seconds,
    without_variation,
)
from slurm_gpu.diagnose.verdict import SUSPECT_BELOW, TWO_GROUPS, UNEXPLAINED, Cause, Evidence, Verdict
from slurm_gpu.text.hostlist import number_ranges
from slurm_gpu.text.units import counted, few

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
_LITTLE_CORRELATION = 0.9
_MOST_SPANS = 8
_TWO_DECIMALS_BELOW = 1.2


def judge_steps(steps: StepSeries) -> Verdict:
    """Judge a job only by timings.

    If a worker is always slower, timings do not show whether the worker has more to do or its GPU is slow.
    The counters of the GPU show this.
    """
    cost = _cost(steps)
    n_replicas, n_stages, n_steps, _ = cost.shape
    coverage = float(np.isfinite(cost).mean())
    if n_steps < LEAST_STEPS or coverage < 0.5:
        known_steps = f"{counted(n_steps, 'step')} with {coverage:.0%} of the operations"
        why = f"{known_steps}; at least {LEAST_STEPS} steps with 50 % are required"
        return Verdict(cause=Cause.INCONCLUSIVE, strength=0.0, why_not=(why,), coverage=coverage)
    levels = median(cost.reshape(n_replicas * n_stages, -1)).reshape(n_replicas, n_stages)
    ratio, stage = _ratios(levels, median(levels.T)), _faster_half(levels.T)
    usual = step_seconds(cost)
    if not usual > 0:
        why = "all durations are 0"
        return Verdict(cause=Cause.INCONCLUSIVE, strength=0.0, why_not=(why,), coverage=coverage)
    base = Verdict(
        cause=Cause.HEALTHY, strength=0.9, coverage=coverage, groups_by="stages of the step timings"
    )
    by_worker, worker = loss(usual, cost / ratio[:, :, None, None]), _worker(ratio, steps)
    by_replica, replica = (
        loss(usual, cost / _of_replicas(ratio)[:, None, None, None]),
        _replica(ratio, steps),
    )
    if replica is not None and by_replica >= _AS_MUCH * by_worker:
        # Factors per worker also remove noise, so they always explain a little more than factors per replica.
        worker = None
    by_stage = loss(usual, cost * equalizing_factors(stage)[None, :, None, None])
    found = [
        (by_worker, worker),
        (by_replica, replica),
        (by_stage, _stage(stage, n_replicas)),
        (loss(usual, equalized(cost, levels)), _sequence(steps)),
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
    by_variation = loss(usual, without_variation(cost, levels))
    most = max(by_worker, by_replica, by_stage, by_variation)
    if not known and most >= LEAST_LOSS:
        if by_variation == most:
            which = "microbatches of each worker took the same time"
        elif by_stage == most:
            which = f"stages took the same time; stage {int(np.nanargmax(stage))} takes longest"
        else:
            which = f"workers took the same time; {_slowest_place(ratio, steps)} takes longest"
        known = [(most, _unexplained(f"steps would be {most:.0%} shorter if all {which}"))]
    if not known:
        text = (
            f"no step would be more than {LEAST_LOSS:.0%} shorter "
            "if all workers and stages took the same time"
        )
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


def _ratios(levels: Matrix, usual: Matrix) -> Matrix:
    """Return the times of all places relative to the usual time of their stage; NaN without data."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(usual > 0, levels / usual, 1.0)
        return np.where(ratio > 0, ratio, np.nan)


def _faster_half(rows: Matrix) -> Matrix:
    """Return the median of the faster half of each row, since all others may be slow."""
    ordered = np.sort(rows, axis=1)
    counts = np.isfinite(ordered).sum(axis=1)
    kept = np.arange(rows.shape[1])[None, :] < ((counts + 1) // 2)[:, None]
    return median(np.where(kept, ordered, np.nan))


def _two_groups(
    cost: Matrix, levels: Matrix, stage: Matrix, steps: StepSeries, usual: float
) -> tuple[float, Verdict] | None:
    """Find stages of replicas that clearly take longer than the faster replicas' same stage.

    Return the loss and a verdict that names these stages. Two replicas have no majority, and a large slow
    group may have more work, so the verdict accuses no GPU.
    """
    ratio = _ratios(levels, stage)
    noise = np.abs(residuals(cost)).reshape(ratio.size, -1)
    # If most operations of a replica's stage take no time, its noise is unknown.
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
    # The gap may also be between the fastest place and all others.
    if gaps[cut] < smallest or not slow.any():
        return None
    ratio /= float(np.median(ratio[known & ~slow]))
    lost = loss(usual, cost / np.where(slow, ratio, 1.0)[:, :, None, None])
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
        strength=0.0,
        evidence=(item,),
        why_not=(why,),
    )
    return lost, verdict


def _spans(what: str, numbers: Sequence[int]) -> str:
    """Return numbers with their noun, such as "rank 3" or "ranks 0 and 5-8"."""
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
    return Verdict(cause=Cause.INCONCLUSIVE, kind=UNEXPLAINED, strength=0.0, why_not=(why,))


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
            "other workers of its stage",
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
        strength=0.7,
        evidence=evidence,
        why_not=("timings do not show whether it has more to do in each step",),
    )
    if any(len(here) > 1 for here in ranks):
        why = "tensor-parallel ranks wait for each other while they compute, so only one of them may be slow"
        return verdict.limited(why, most=SUSPECT_BELOW - 0.05)
    return verdict


def _ranks(steps: StepSeries, replica: int, stage: int) -> tuple[int, ...]:
    """Return the known ranks of a replica's stage."""
    return tuple(int(rank) for rank in steps.ranks[replica, stage] if rank >= 0)


def _who(ranks: tuple[int, ...], replica: int) -> str:
    if not ranks:
        return f"replica {replica}"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _of_replicas(ratio: Matrix) -> Matrix:
    """Return the duration of each replica, relative to the median or, of two replicas, to the faster one."""
    own = median(ratio)
    known = own[np.isfinite(own)]
    if not known.size:
        return np.ones(len(own))
    times = own / (np.median(known) if len(own) > 2 else known.min())
    return np.where(np.isfinite(times), times, 1.0)


def _replica(ratio: Matrix, steps: StepSeries) -> Verdict | None:
    """Find replicas that have more to do: all of their stages take longer by the same factor.

    In contrast, a slow GPU affects only one stage of its replica.
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
        strength=0.8,
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
    text = f"the {where} stage ({busiest}) computes for {times:.2f} times as long as the others"
    verdict = Verdict(
        cause=Cause.IMBALANCE,
        kind="pipeline stage",
        roles=(f"stage {busiest}",),
        strength=0.95,
        evidence=(Evidence(text=text, metric="compute_s", value=times, expected=1.0),),
    )
    if n_replicas > 1:
        return verdict
    return verdict.limited(
        "with one replica, a slow GPU of the stage has the same symptoms", most=SUSPECT_BELOW - 0.05
    )


def _sequence(steps: StepSeries) -> Verdict | None:
    """Find microbatches whose content lengthens both their forward and their backward pass."""
    forward, backward = residuals(steps.forward), residuals(steps.backward)
    std = std_of(forward)
    correlation = _correlation(forward, backward)
    much = std >= _SEQUENCE_CV and correlation >= _SEQUENCE_CORRELATION
    if not (much or (std >= LITTLE_CV and correlation >= _LITTLE_CORRELATION)):
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
    return Verdict(cause=Cause.IMBALANCE, kind="sequence", strength=0.95, evidence=tuple(evidence))


def _correlation(one: Matrix, other: Matrix) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    a, b = one[both], other[both]
    if a.size < 8 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
