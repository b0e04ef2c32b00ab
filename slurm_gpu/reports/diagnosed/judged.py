"""What is to be said of one run, by all that slurm-gpudbd knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slurm_gpu.database.verdicts.job_series import groups_of, series_of_timelines, series_of_windows
from slurm_gpu.database.verdicts.purpose import adjusted, may_rest
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.stalls import STALLED_AT_END
from slurm_gpu.diagnose.steps import StepSeries
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.text.cells import span
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.runs import NodeWindow, Run, RunTimeline

# What nobody has to do anything about.
NOTHING = (Cause.HEALTHY, Cause.UNKNOWN)
_CUT_SHORT = ("CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "TIMEOUT")
_TO_ITS_END_S = 60.0


class StepTimings(Protocol):
    """Timings of steps that the job wrote itself."""

    @property
    def steps(self) -> StepSeries:
        """What it told of its steps."""

    def ranked(self, series: Series) -> Series:
        """The series with the launcher's ranks."""

    def groups(self, series: Series) -> Groups | None:
        """Who does the same, where they tell."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A verdict and what it stands on: `by` is `window` or `timeline`."""

    by: str
    series: Series
    groups: Groups | None
    verdict: Verdict

    def source(self, run: Run) -> str:
        """What it stands on, in words. A window may have been asked for long before the run was over."""
        if self.by == "timeline":
            return "its whole course"
        if run.end_s is None or self.reaches_its_end(run):
            return "its last minutes at full resolution"
        apart = span(run.end_s - self.series.end_s)
        return f"minutes at full resolution that end {apart} before it did"

    def reaches_its_end(self, run: Run) -> bool:
        """Whether it stands on what was told until the run ended, or until now."""
        return run.end_s is None or run.end_s - self.series.end_s <= _TO_ITS_END_S

    def told(self, run: Run, rules: DiagnosisThresholds) -> str:
        """How much of it was told, and by how many GPUs where not by all; to follow how long it lasts."""
        if self.verdict.coverage is None:
            return ""
        telling = int((self.series.coverage() >= rules.missing_below).sum())
        n_gpus = len(self.series.workers) + _never_told(run)
        if telling == n_gpus:
            return f", {self.verdict.coverage:.0%} of which were told"
        return f", {self.verdict.coverage:.0%} of which were told by {telling} of its {n_gpus} GPUs"


def judged(
    run: Run,
    windows: Sequence[NodeWindow],
    courses: Sequence[RunTimeline],
    rules: DiagnosisThresholds,
    groups: str | None = None,
    timings: StepTimings | None = None,
    hosts: Sequence[NodeMinutes] = (),
) -> JudgedRun:
    """What is found now, by the windows and what `hosts` did, counts; else what is found in the whole course.

    `courses` may be of other runs of the job too. ValueError where `groups` are none of this job.
    """
    # Of an array the windows of all of its tasks may be there, which had the same GPUs one after the other.
    windows = [item for item in windows if item.job_id == run.job_id]
    looks = [("window", series_of_windows(run, windows, hosts=hosts))] if windows else []
    own = [
        item.devices or () for item in courses if (item.job_id, item.submit_s) == (run.job_id, run.submit_s)
    ]
    looks.append(("timeline", series_of_timelines(run, own[0] if own else ())))
    verdicts = []
    for by, series in looks:
        told = series if timings is None else timings.ranked(series)
        given = None if timings is None or groups is not None else timings.groups(told)
        given = given or groups_of(run, groups, told.workers)
        steps = None if timings is None else timings.steps
        verdict = diagnose(
            told,
            groups=given,
            steps=steps,
            rules=rules,
            running=run.end_s is None,
            cut_short=_cut_short(run, series),
        )
        verdict = _of_all(run, adjusted(verdict, run.app, run.app_field, run.state))
        verdicts.append(JudgedRun(by, told, given, verdict))
    found = [item for item in verdicts if item.verdict.cause not in NOTHING]
    stood = [item for item in verdicts if item.verdict.kind == STALLED_AT_END]
    known = [item for item in verdicts if item.verdict.cause is not Cause.UNKNOWN]
    if not found and not stood and known and not known[0].reaches_its_end(run):
        # What is well is so for as long as was seen: the whole course says more than minutes of it.
        return known[-1]
    return (found or stood or known or verdicts)[0]


def _known(run: Run) -> int:
    """How many of its GPUs ever told anything."""
    return len({(record.node, record.device) for record in run.devices or ()})


def _never_told(run: Run) -> int:
    """How many of its GPUs never told anything; of parts of GPUs that are shared nobody knows."""
    return max(0, int((run.n_gpus or 0.0) - _known(run)))


def _of_all(run: Run, verdict: Verdict) -> Verdict:
    """`cannot tell` where a job seems well and some of its GPUs never told anything: it may be those."""
    if verdict.cause is not Cause.HEALTHY or run.n_gpus is None or not _never_told(run):
        return verdict
    told = _known(run)
    why = f"{told} of its {run.n_gpus:.0f} GPUs alone told anything: the node of the others tells nothing"
    seen = f"by the measurements alone: {verdict.cause.value}"
    return replace(verdict, cause=Cause.UNKNOWN, confidence=0.0, why_not=(*verdict.why_not, why, seen))


def _cut_short(run: Run, series: Series) -> bool:
    """Whether these are of a run up to its end, which came before it was done."""
    if run.end_s is None or series.end_s < run.end_s - _TO_ITS_END_S or may_rest(run.app, run.app_field):
        return False
    return run.state in _CUT_SHORT
