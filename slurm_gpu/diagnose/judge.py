"""One verdict of a job, or an honest `cannot tell`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm_gpu.diagnose.case import Case, DiagnosisThresholds, build_case, only_utilisation
from slurm_gpu.diagnose.gaps import heavier_by_gaps
from slurm_gpu.diagnose.hardware import LOST, contradicts, failing, slow
from slurm_gpu.diagnose.lockstep import out_of_step
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import JobWorker, Series
from slurm_gpu.diagnose.signals import LEAST_BLOCKS
from slurm_gpu.diagnose.slower import slower_than_before
from slurm_gpu.diagnose.stalls import STOOD, hanging, stood
from slurm_gpu.diagnose.steps import StepSeries, judge_steps
from slurm_gpu.diagnose.supply import links, starved_all, starved_some
from slurm_gpu.diagnose.verdict import NO_PEERS, NOTHING_RAN, SUSPICION, TOO_EARLY, Cause, Evidence, Verdict
from slurm_gpu.diagnose.workload import heavier, replicas, sequences, stages
from slurm_gpu.text.units import counted

_OF_PEERS: tuple[Callable[[Case], Verdict | None], ...] = (
    # What the hardware says of itself comes before what follows from it.
    slow,
    starved_some,
    heavier,
    links,
    starved_all,
    slower_than_before,
    sequences,
    stages,
    replicas,
    heavier_by_gaps,
)
_OF_ONE = (starved_all, slower_than_before)
_HEALTHY = 0.8
_LEAST_S = 60.0
"""Of computing: what begins has less to run at first, and few readings of ten seconds are no course."""
_ENDS_S = 5.0
_NOTHING_RAN = "none of its GPUs has had anything to run: it has not begun to compute, or uses none of them"


def diagnose(
    series: Series,
    *,
    groups: Groups | None = None,
    steps: StepSeries | None = None,
    rules: DiagnosisThresholds | None = None,
    running: bool = True,
    cut_short: bool = False,
) -> Verdict:
    """Judge one job by what its workers told, as `series.align` has it.

    `groups`: who does the same, in the order of the workers; inferred where nobody says. `steps`: its own
    timings, which count for more than counters. `running`: whether it goes on; the end of a job is no hang,
    but where it was `cut_short`: cancelled, out of time, or failed.
    Raises ValueError where groups and workers do not fit.
    """
    if cut_short:
        series = _without_its_end(series)
    case = build_case(series, groups, rules or DiagnosisThresholds(), running, cut_short)
    verdict = _by_counters(case)
    if steps is None:
        return verdict
    verdict = _placed(sharpened(verdict, judge_steps(steps)), case)
    timed = int((steps.ranks >= 0).sum())
    if timed > case.n:
        why = f"the timings are of {timed} ranks, and the job has {case.n} GPUs: they may be another job's"
        verdict = verdict.limited(why, most=SUSPICION)
    elif 0 < timed < case.n:
        verdict = verdict.limited(f"the timings are of {counted(timed, 'rank')} of {case.n} GPUs alone")
    return verdict


def _without_its_end(series: Series) -> Series:
    """In which its processes are ended, one after the other."""
    n_bins = series.n_bins - math.ceil(_ENDS_S / series.width_s)
    if n_bins < 1:
        return series
    values = {metric: matrix[:, :n_bins] for metric, matrix in series.values.items()}
    return replace(series, n_bins=n_bins, values=values)


def _placed(verdict: Verdict, case: Case) -> Verdict:
    """Timings know ranks alone: the GPUs that these are, where the launcher's ranks of GPUs are known."""
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
        return case.verdict(Cause.UNKNOWN, 0.0, kind=kind, why_not=(why,))
    if (why := out_of_step(case)) is not None:
        # What the hardware says of itself needs no peers.
        found = slow(case)
        if found is not None and found.kind == "throttled":
            return _limits(case, found.limited(why))
        return case.verdict(Cause.UNKNOWN, 0.0, why_not=(why,))
    if (found := hanging(case)) is not None:
        return _limits(case, found)
    block_s = case.bins_of_block * case.series.width_s
    if case.active_blocks < LEAST_BLOCKS or case.active_blocks * block_s < _LEAST_S:
        why = f"it has computed for less than {max(LEAST_BLOCKS * block_s, _LEAST_S):.0f} s"
        kind = TOO_EARLY if case.running else ""
        return case.verdict(Cause.UNKNOWN, 0.0, kind=kind, why_not=(why,))
    alone = int(case.judged.sum()) < 2
    unexplained = None
    for look in _OF_ONE if alone else _OF_PEERS:
        found = look(case)
        if found is not None and found.cause is not Cause.UNKNOWN:
            return _limits(case, found)
        # What one cannot explain another may.
        unexplained = unexplained or found
    if unexplained is not None:
        return _limits(case, unexplained)
    if (why := stood(case)) is not None:
        return case.verdict(Cause.UNKNOWN, 0.0, kind=STOOD, why_not=(why,))
    if alone:
        why = "one GPU has no peers to compare it with"
        return case.verdict(Cause.UNKNOWN, 0.0, kind=NO_PEERS, why_not=(why,))
    if (why := contradicts(case)) is not None:
        return case.verdict(Cause.UNKNOWN, 0.0, why_not=(why,))
    text = f"no worker lies apart from its peers in any of {len(case.deviations)} signals"
    evidence = (Evidence(text=text, metric="signals", value=0.0, expected=0.0),)
    return _limits(case, case.verdict(Cause.HEALTHY, _HEALTHY, evidence=evidence))


def _too_little(case: Case) -> str | None:
    if not case.judged.any():
        return "its GPUs are shared with other jobs" if case.shared else "nothing was told of its GPUs"
    if case.nothing_to_run():
        return _NOTHING_RAN
    if case.phases.metric is None:
        return "neither power nor any activity of its GPUs was told"
    if case.coverage < case.rules.min_coverage:
        return (
            f"only {case.coverage:.0%} of its time was told, of {case.rules.min_coverage:.0%} that it takes"
        )
    return None


def _limits(case: Case, verdict: Verdict) -> Verdict:
    """What is not known is said, and takes from how sure the verdict is, or forbids it."""
    unseen = []
    if case.shared:
        unseen.append(f"{_names(case.shared)}: shared with other jobs, and not judged")
    if case.missing:
        unseen.append(f"{_names(case.missing)}: told nothing")
    if case.barely:
        unseen.append(
            f"{_names(case.barely)}: told less than {case.rules.missing_below:.0%} of that time so far"
        )
    if case.unused:
        unseen.append(f"{_names(case.unused)}: have had nothing to run all the time, and take no part")
    if unseen and not verdict.culprits and verdict.cause not in (Cause.IMBALANCE, Cause.HANG):
        # Whoever is not seen may be the one.
        seen = f"what was seen alone says: {verdict.cause.value}"
        why_not = (*verdict.why_not, *unseen, seen)
        return case.verdict(Cause.UNKNOWN, 0.0, evidence=verdict.evidence, why_not=why_not)
    if unseen:
        verdict = verdict.limited(*unseen, most=0.8)
    if only_utilisation(case) and verdict.cause is not Cause.HANG:
        verdict = verdict.limited(
            "only utilisation was told, and a GPU that waits has it as well", most=SUSPICION
        )
    return verdict


def _names(workers: Sequence[JobWorker]) -> str:
    nodes = dict.fromkeys(worker.node for worker in workers)
    return f"{counted(len(workers), 'GPU')} on {', '.join(nodes)}"


def sharpened(counters: Verdict, timings: Verdict) -> Verdict:
    """Both together: timings know where time goes, counters know whether hardware is at fault."""
    if counters.cause is Cause.HANG or counters.kind in LOST or counters.kind.startswith("xid"):
        return counters
    if timings.cause is Cause.UNKNOWN:
        return counters.limited(*(f"of the timings: {why}" for why in timings.why_not))
    both = (*timings.evidence, *counters.evidence)
    if timings.cause is Cause.IMBALANCE:
        # A GPU that the hardware calls slow is so whatever else there is; one that is only busy is not.
        if counters.cause is Cause.SLOW and counters.kind in ("throttled", "clock"):
            return replace(counters, evidence=(*counters.evidence, *timings.evidence))
        return _beside(timings, counters)
    if timings.cause is Cause.SLOW:
        ranks = {worker.rank for worker in timings.culprits}
        if counters.cause is Cause.SLOW and ranks & {worker.rank for worker in counters.culprits}:
            sure = 1 - (1 - counters.confidence) * (1 - timings.confidence)
            return replace(counters, confidence=sure, evidence=both)
        if counters.cause is Cause.IMBALANCE and counters.kind == "workers":
            return replace(counters, evidence=both)
        return _beside(timings, counters) if counters.cause is not Cause.SLOW else counters
    if counters.cause in (Cause.UNKNOWN, Cause.IMBALANCE):
        # All compute equally long: what is left is told by the timings.
        return _beside(timings, counters)
    if counters.cause is Cause.HEALTHY:
        return replace(counters, evidence=(*counters.evidence, *timings.evidence))
    return counters


def _beside(timings: Verdict, counters: Verdict) -> Verdict:
    """What the timings say, with what the counters told: that these are well speaks against it."""
    told = replace(timings, groups=counters.groups, groups_by=counters.groups_by)
    if counters.cause is Cause.HEALTHY:
        # A rank is late where its process is; only its counters tell whether its GPU is.
        most = SUSPICION if timings.cause is Cause.SLOW else 1.0
        return told.limited(*(item.text for item in counters.evidence), most=most)
    return replace(told, evidence=(*timings.evidence, *counters.evidence))
