"""Detect suspended jobs (`scontrol suspend`, gang scheduling) by means that users cannot influence.

The cgroup freezer of a job's steps shows a suspension within POLL_S. If there is no freezer, because cgroups
are not used or the job has no steps, Slurm's reports show a suspension up to a minute late. Stopped processes
are not evidence, because users can stop their own processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_gpu.node.jobs.reconcile import ReportedJob
from slurm_gpu.node.jobs.segments import OpenSegment
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from slurm_gpu.wire.live import LIVE_VALID_S

POLL_S = 2.0
# Each answer from slurm-gpudbd contains the states of jobs in Slurm; states older than this are ignored.
_REPORT_VALID_S = LIVE_VALID_S


@dataclass(frozen=True, slots=True)
class _SuspensionReport:
    restart: int
    suspended: bool
    at_s: float


class Suspensions:
    """Updates the suspended time in the tallies of segments."""

    def __init__(self, cgroups: JobCgroups) -> None:
        self._cgroups = cgroups
        self._reports: dict[int, _SuspensionReport] = {}
        self.next_poll_s = 0.0

    def update_jobs(self, jobs: Iterable[ReportedJob], now_s: float) -> None:
        """Apply Slurm's report on all jobs with GPUs here."""
        self._reports = {
            job.job_id: _SuspensionReport(job.restart, job.suspended, now_s - job.age_s) for job in jobs
        }

    def poll(self, segments: Iterable[OpenSegment], now_s: float) -> None:
        """If a check is due, check whether each job is suspended."""
        if now_s < self.next_poll_s:
            return
        self.next_poll_s = now_s + POLL_S
        for segment in segments:
            suspended = None if segment.ending else self._is_suspended(segment, now_s)
            if suspended is not None:
                for tally in segment.tallies.values():
                    tally.suspension(now_s, suspended=suspended)

    def _is_suspended(self, segment: OpenSegment, now_s: float) -> bool | None:
        allocation = segment.allocation
        key = allocation.key
        frozen = self._cgroups.frozen(JobName(key.job_id, allocation.uid, allocation.sluid))
        if frozen is not None:
            return frozen
        report = self._reports.get(key.job_id)
        is_valid = (
            report is not None and report.restart == key.restart and now_s - report.at_s <= _REPORT_VALID_S
        )
        return report.suspended if report is not None and is_valid else None
