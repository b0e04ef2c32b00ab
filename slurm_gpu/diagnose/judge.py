"""Judge one job and return one verdict, which may be inconclusive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm_gpu.diagnose.case import Case, DiagnosisThresholds, build_case, only_utilisation
from slurm_gpu.diagnose.hangs import STALLED_AT_END, hang, stalled_at_end
from slurm_gpu.diagnose.hardware import LOST, contradicts, failing, slow, unexplained_difference
from slurm_gpu.diagnose.history import below_earlier_runs
from slurm_gpu.diagnose.kernel_gaps import heavier_by_gaps
from slurm_gpu.diagnose.lockstep import out_of_step
from slurm_gpu.diagnose.lost_time import lost_at_times
from slurm_gpu.diagnose.pauses import stalls
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import JobWorker, Series
from slurm_gpu.diagnose.signals import LEAST_BLOCKS, Signal
from slurm_gpu.diagnose.slowdown import recent_slowdown, slowdown
from slurm_gpu.diagnose.steps.judge import judge_steps
from slurm_gpu.diagnose.steps.table import StepSeries
from slurm_gpu.diagnose.supply import links, starved_all, starved_some
from slurm_gpu.diagnose.verdict import (
    LONG_PAUSE,
    NO_DIFFERENCE,
    NO_PEERS,
    NOTHING_RAN,
    SUSPICION,
    TOO_EARLY,
    TWO_GROUPS,
    UNEXPLAINED,
    Cause,
    Evidence,
    Verdict,
)
from slurm_gpu.diagnose.workload import heavier, replicas, sequences, stages
from slurm_gpu.text.units import counted

_CHECKS_OF_PEERS: tuple[Callable[[Case], Verdict | None], ...] = (
    # Reports by the hardware come before conclusions from other signals.
    slow,
    starved_some,
    heavier,
    links,
    starved_all,
    slowdown,
    sequences,
    stages,
    replicas,
    heavier_by_gaps,
)
_CHECKS_OF_ONE = (starved_all, slowdown)
_CHECKS_OF_LOSSES = (unexplained_difference, recent_slowdown, stalls, lost_at_times)
_HEALTHY = 0.8
# Minimum computing time: a job has less to run when it begins, and a few samples show no trend.
_LEAST_S = 60.0
_ENDS_S = 5.0
_WITHOUT_ACTIVITY = (
    "no GPU differs from its peers, but a GPU that is slow at its usual clock cannot be found without SM "
    "activity"
)
_NOTHING_RAN = "its GPUs have had nothing to run: the job has not begun to compute, or does not use them"


def diagnose(
    series: Series,
    *,
    groups: Groups | None = None,
    steps: StepSeries | None = None,
    rules: DiagnosisThresholds | None = None,
    running: bool = True,
    cut_short: bool = False,
    earlier_clocks: Sequence[float] = (),
) -> Verdict:
    """Judge one job by the series of its workers, as returned by `series.align`.

    `groups` assigns each worker to a group of peers; by default, the groups are inferred. `steps` contains
    timings recorded by the job, which take precedence over counters. `running` is False for a job that has
    ended. `cut_short` states whether it was cancelled, timed out or failed; such a job may have hung at its
    end. `earlier_clocks` contains the usual SM clocks of comparable runs, as fractions of the maximum.
    Raise ValueError if groups and workers do not match.
    """
    if cut_short:
        series = _without_its_end(series)
    case = build_case(series, groups, rules or DiagnosisThresholds(), running, cut_short)
    verdict = _by_counters(case)
    if verdict.cause in (Cause.HEALTHY, Cause.INCONCLUSIVE):
        slower = below_earlier_runs(case, earlier_clocks)
        verdict = verdict if slower is None else slower.limited(*verdict.why_not)
    if steps is None:
        return verdict
    verdict = _with_devices(combine_verdicts(verdict, judge_steps(steps)), case)
    timed = int((steps.ranks >= 0).sum())
    if timed > case.n:
        why = (
            f"the timings contain {counted(timed, 'rank')}, but the job has {counted(case.n, 'GPU')}: "
            "the timings may belong to another job"
        )
        verdict = verdict.limited(why, most=SUSPICION)
    elif 0 < timed < case.n:
        verdict = verdict.limited(f"the timings contain only {counted(timed, 'rank')} of {case.n} GPUs")
    return verdict


def _without_its_end(series: Series) -> Series:
    """Remove the last seconds, in which the job's processes end one after the other."""
    n_bins = series.n_bins - math.ceil(_ENDS_S / series.width_s)
    if n_bins < 1:
        return series
    values = {metric: matrix[:, :n_bins] for metric, matrix in series.values.items()}
    return replace(series, n_bins=n_bins, values=values)


def _with_devices(verdict: Verdict, case: Case) -> Verdict:
    """Replace culprits that the timings report as ranks with the GPUs of these ranks, where known."""
    ranked = {worker.rank: worker for worker in case.series.workers if worker.rank is not None}
    culprits = tuple(
        ranked.get(worker.rank, worker) if worker.rank is not None and not worker.device else worker
        for worker in verdict.culprits
    )
    return replace(verdict, culprits=culprits)


def _by_counters(case: Case) -> Verdict:
    if (found := failing(case)) is not None:
        return _limits(case, found)
    if (why := _too_little(case)) is not None:
        kind = NOTHING_RAN if why == _NOTHING_RAN else ""
        return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=kind, why_not=(why,))
    if (why := out_of_step(case)) is not None:
        # Errors that the hardware reports can be judged without peers.
        found = slow(case)
        if found is not None and found.kind == "throttled":
            return _limits(case, found.limited(why))
        return case.verdict(Cause.INCONCLUSIVE, 0.0, why_not=(why,))
    stall = hang(case)
    if stall is not None and stall.cause is Cause.HANG:
        return _limits(case, stall)
    block_s = case.bins_of_block * case.series.width_s
    if case.active_blocks < LEAST_BLOCKS or case.active_blocks * block_s < _LEAST_S:
        why = f"it has computed for less than {max(LEAST_BLOCKS * block_s, _LEAST_S):.0f} s"
        kind = TOO_EARLY if case.running else ""
        return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=kind, why_not=(why,))
    alone = int(case.judged.sum()) < 2
    unexplained = stall
    for check in _CHECKS_OF_ONE if alone else _CHECKS_OF_PEERS:
        found = check(case)
        if found is not None and found.cause is not Cause.INCONCLUSIVE:
            return _limits(case, found)
        # A later check may explain the finding.
        unexplained = unexplained or found
    if unexplained is not None:
        return _limits(case, unexplained)
    if (why := stalled_at_end(case)) is not None:
        return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=STALLED_AT_END, why_not=(why,))
    if alone:
        why = "a single GPU has no peers to compare it with"
        return case.verdict(Cause.INCONCLUSIVE, 0.0, kind=NO_PEERS, why_not=(why,))
    if (why := contradicts(case)) is not None:
        return case.verdict(Cause.INCONCLUSIVE, 0.0, why_not=(why,))
    for check in _CHECKS_OF_LOSSES:
        if (found := check(case)) is not None:
            return _limits(case, found)
    text = f"no worker differs from its peers in any of {len(case.deviations)} signals"
    evidence = (Evidence(text=text, metric="signals", value=0.0, expected=0.0),)
    verdict = _limits(case, case.verdict(Cause.HEALTHY, _HEALTHY, evidence=evidence))
    if verdict.cause is Cause.HEALTHY and case.deviations.keys().isdisjoint((Signal.BUSY, Signal.WORK)):
        # Power may differ by a tenth between equal GPUs, and utilisation is 100 % on a waiting GPU.
        why_not = (*verdict.why_not, _WITHOUT_ACTIVITY)
        return replace(
            verdict,
            cause=Cause.INCONCLUSIVE,
            kind=NO_DIFFERENCE,
            strength=0.0,
            excludes_faults=True,
            why_not=why_not,
        )
    return verdict


def _too_little(case: Case) -> str | None:
    if not case.judged.any():
        return "its GPUs are shared with other jobs" if case.shared else "its GPUs have no data"
    if case.is_idle():
        return _NOTHING_RAN
    if case.phases.metric is None:
        return "the power and activity of its GPUs were not measured"
    if case.coverage < case.rules.min_coverage:
        return f"the coverage is only {case.coverage:.0%}; {case.rules.min_coverage:.0%} is required"
    return None


def _limits(case: Case, verdict: Verdict) -> Verdict:
    """Add limitations to the verdict, and reduce its strength or replace it with Cause.INCONCLUSIVE."""
    unknown = []
    if case.shared:
        unknown.append(f"{_names(case.shared)}: shared with other jobs and not judged")
    if case.missing:
        unknown.append(f"{_names(case.missing)}: no data")
    if case.barely:
        unknown.append(
            f"{_names(case.barely)}: data for less than {case.rules.missing_below:.0%} of the time"
        )
    if case.unused:
        unknown.append(f"{_names(case.unused)}: not used by the job")
    waits = verdict.cause is Cause.COMMUNICATION and verdict.kind == "all"
    if unknown and (waits or verdict.cause in (Cause.HEALTHY, Cause.INCONCLUSIVE)):
        # Other workers may wait for a worker without data, but it does not cause their other faults.
        seen = f"without these GPUs, the verdict would be: {verdict.cause.value}"
        why_not = (*verdict.why_not, *unknown, seen)
        return case.verdict(Cause.INCONCLUSIVE, 0.0, evidence=verdict.evidence, why_not=why_not)
    if unknown:
        verdict = verdict.limited(*unknown, most=0.8)
    if only_utilisation(case) and verdict.cause is not Cause.HANG:
        verdict = verdict.limited(
            "only utilisation is known, which is also 100 % on a waiting GPU", most=SUSPICION
        )
    return verdict


def _names(workers: Sequence[JobWorker]) -> str:
    nodes = dict.fromkeys(worker.node for worker in workers)
    return f"{counted(len(workers), 'GPU')} on {', '.join(nodes)}"


def combine_verdicts(counters: Verdict, timings: Verdict) -> Verdict:
    """Combine the verdicts of counters and timings.

    Timings show where time is spent; counters show whether hardware is at fault.
    """
    if counters.cause is Cause.HANG or counters.kind in LOST or counters.kind.startswith("xid"):
        return counters
    both_differ = timings.kind == counters.kind == TWO_GROUPS
    if timings.kind in (TWO_GROUPS, UNEXPLAINED) and (counters.finds_nothing or both_differ):
        # Counters that show no difference do not explain the loss, and timings best show which workers are
        # slower.
        return _combined(timings, counters).limited(*counters.why_not)
    if timings.cause is Cause.HEALTHY and counters.kind in (LONG_PAUSE, UNEXPLAINED):
        # Timings contain only the time in which the job computes.
        return replace(counters, evidence=(*counters.evidence, *timings.evidence))
    if timings.cause is Cause.INCONCLUSIVE:
        return counters.limited(*(f"timings: {why}" for why in timings.why_not))
    both = (*timings.evidence, *counters.evidence)
    if timings.cause is Cause.IMBALANCE:
        # A GPU that the driver reports as slow is certainly slow; a GPU that is only busy longer may not be.
        if counters.cause is Cause.SLOW and counters.kind in ("throttled", "clock"):
            return replace(counters, evidence=(*counters.evidence, *timings.evidence))
        return _combined(timings, counters)
    if timings.cause is Cause.SLOW:
        ranks = {worker.rank for worker in timings.culprits}
        if counters.cause is Cause.SLOW and ranks & {worker.rank for worker in counters.culprits}:
            sure = 1 - (1 - counters.strength) * (1 - timings.strength)
            return replace(counters, strength=sure, evidence=both)
        if counters.cause is Cause.IMBALANCE and counters.kind == "workers":
            return replace(counters, evidence=both)
        return _combined(timings, counters) if counters.cause is not Cause.SLOW else counters
    if counters.cause in (Cause.INCONCLUSIVE, Cause.IMBALANCE):
        # All workers compute for the same time, so the timings explain the rest.
        return _combined(timings, counters)
    if counters.cause is Cause.HEALTHY:
        return replace(counters, evidence=(*counters.evidence, *timings.evidence))
    return counters


def _combined(timings: Verdict, counters: Verdict) -> Verdict:
    """Return the verdict of the timings, with the evidence of the counters added.

    If the counters show no fault, the strength of a slow GPU is reduced.
    """
    combined = replace(timings, groups=counters.groups, groups_by=counters.groups_by)
    if counters.cause is Cause.HEALTHY:
        # A rank is late if its process is late; only counters show whether its GPU is slow.
        most = SUSPICION if timings.cause is Cause.SLOW else 1.0
        return combined.limited(*(item.text for item in counters.evidence), most=most)
    return replace(combined, evidence=(*timings.evidence, *counters.evidence))
