"""Diagnose one run from the data in slurm-gpudbd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slurm_gpu.database.verdicts.job_series import groups_of, series_of_timelines, series_of_windows
from slurm_gpu.database.verdicts.purpose import adjusted, may_rest
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.hangs import STALLED_AT_END
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.steps.table import StepSeries
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.text.cells import span
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.runs import NodeWindow, Run, RunTimeline

# Causes that need no action.
NO_FINDING = (Cause.HEALTHY, Cause.INCONCLUSIVE)
_CUT_SHORT = ("CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "TIMEOUT")
_TO_ITS_END_S = 60.0


class StepTimings(Protocol):
    """Step timings that the job itself wrote."""

    @property
    def steps(self) -> StepSeries:
        """Return the steps."""

    def ranked(self, series: Series) -> Series:
        """Return the series with the launcher's ranks."""

    def groups(self, series: Series) -> Groups | None:
        """Return the groups of workers with the same role, if the timings contain them."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A verdict and its data; `by` is the source of the data, `window` or `timeline`."""

    by: str
    series: Series
    groups: Groups | None
    verdict: Verdict

    def source(self, run: Run) -> str:
        """Describe the data of the verdict; a window may end long before the run does."""
        if self.by == "timeline":
            return "its whole timeline"
        if run.end_s is None or self.reaches_its_end(run):
            return "its last minutes at full resolution"
        apart = span(run.end_s - self.series.end_s)
        return f"minutes at full resolution that end {apart} before its end"

    def reaches_its_end(self, run: Run) -> bool:
        """Return whether the data reach the end of the run; True if the run has not ended yet."""
        return run.end_s is None or run.end_s - self.series.end_s <= _TO_ITS_END_S

    def coverage_text(self, run: Run, rules: DiagnosisThresholds) -> str:
        """Return a text such as ", 93% coverage", with the numbers of GPUs if some GPUs have no data."""
        if self.verdict.coverage is None:
            return ""
        n_reported = int((self.series.coverage() >= rules.missing_below).sum())
        n_gpus = len(self.series.workers) + _n_without_records(run)
        if n_reported == n_gpus:
            return f", {self.verdict.coverage:.0%} coverage"
        return f", {self.verdict.coverage:.0%} coverage from {n_reported} of its {n_gpus} GPUs"


def judge_run(
    run: Run,
    windows: Sequence[NodeWindow],
    courses: Sequence[RunTimeline],
    rules: DiagnosisThresholds,
    groups: str | None = None,
    timings: StepTimings | None = None,
    hosts: Sequence[NodeMinutes] = (),
    earlier_clocks: Sequence[float] = (),
) -> JudgedRun:
    """Return the verdict on the windows and `hosts` or, without a finding there, on the whole timeline.

    `courses` may include timelines of the job's other runs. Raise ValueError if `groups` does not match the
    job.
    """
    # `windows` may contain windows of other array tasks that used the same GPUs.
    windows = [item for item in windows if item.job_id == run.job_id]
    sources = [("window", series_of_windows(run, windows, hosts=hosts))] if windows else []
    own = [
        item.devices or () for item in courses if (item.job_id, item.submit_s) == (run.job_id, run.submit_s)
    ]
    sources.append(("timeline", series_of_timelines(run, own[0] if own else ())))
    verdicts = []
    for by, series in sources:
        ranked = series if timings is None else timings.ranked(series)
        given = None if timings is None or groups is not None else timings.groups(ranked)
        given = given or groups_of(run, groups, ranked.workers)
        steps = None if timings is None else timings.steps
        verdict = diagnose(
            ranked,
            groups=given,
            steps=steps,
            rules=rules,
            running=run.end_s is None,
            cut_short=_cut_short(run, series),
            earlier_clocks=earlier_clocks,
        )
        verdict = _of_all(run, adjusted(verdict, run.app, run.app_field, run.state))
        verdicts.append(JudgedRun(by, ranked, given, verdict))
    found = [item for item in verdicts if item.verdict.cause not in NO_FINDING]
    stood = [item for item in verdicts if item.verdict.kind == STALLED_AT_END]
    known = [item for item in verdicts if item.verdict.cause is not Cause.INCONCLUSIVE]
    if not found and not stood and known and not known[0].reaches_its_end(run):
        # Without a finding, prefer the verdict on the whole timeline, which covers more time than a window.
        return known[-1]
    return (found or stood or known or verdicts)[0]


def _known(run: Run) -> int:
    """Return the number of the run's GPUs that have a record."""
    return len({(record.node, record.device) for record in run.devices or ()})


def _n_without_records(run: Run) -> int:
    """Return the number of the run's whole GPUs without a record; shared GPUs are not counted."""
    return max(0, int((run.n_gpus or 0.0) - _known(run)))


def _of_all(run: Run, verdict: Verdict) -> Verdict:
    """Replace a healthy verdict with an inconclusive one if GPUs, perhaps faulty ones, have no records."""
    if verdict.cause is not Cause.HEALTHY or run.n_gpus is None or not _n_without_records(run):
        return verdict
    why = f"only {_known(run)} of {run.n_gpus:.0f} GPUs have records; the nodes of the other GPUs sent none"
    seen = f"by the measurements alone: {verdict.cause.value}"
    return replace(verdict, cause=Cause.INCONCLUSIVE, strength=0.0, why_not=(*verdict.why_not, why, seen))


def _cut_short(run: Run, series: Series) -> bool:
    """Return whether the run ended without completing and the data reach its end."""
    if run.end_s is None or series.end_s < run.end_s - _TO_ITS_END_S or may_rest(run.app, run.app_field):
        return False
    return run.state in _CUT_SHORT
