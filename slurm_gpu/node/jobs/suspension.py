"""Which jobs are suspended (`scontrol suspend`, gang scheduling), by what no user can write.

The freezer of a job's steps tells it within POLL_S. Where there is none (no cgroups, or no step) Slurm's word
does, up to a minute late. That a process is stopped tells nothing: its owner can do that too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_gpu.node.jobs.reconcile import ReportedJob
from slurm_gpu.node.jobs.segments import OpenSegment
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from slurm_gpu.wire.live import LIVE_VALID_S

POLL_S = 2.0
# Slurm's state of a job comes with each answer of slurm-gpudbd; older ones say nothing.
_REPORT_VALID_S = LIVE_VALID_S


@dataclass(frozen=True, slots=True)
class _SuspensionReport:
    restart: int
    suspended: bool
    at_s: float


class Suspensions:
    """Tells the tallies of watched segments how long their jobs were suspended."""

    def __init__(self, cgroups: JobCgroups) -> None:
        self._cgroups = cgroups
        self._told: dict[int, _SuspensionReport] = {}
        self.next_poll_s = 0.0

    def update_jobs(self, jobs: Iterable[ReportedJob], now_s: float) -> None:
        """What Slurm says of all jobs that hold GPUs here."""
        self._told = {
            job.job_id: _SuspensionReport(job.restart, job.suspended, now_s - job.age_s) for job in jobs
        }

    def poll(self, segments: Iterable[OpenSegment], now_s: float) -> None:
        """Look at each job that is watched, if it is time to."""
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
        told = self._told.get(key.job_id)
        known = told is not None and told.restart == key.restart and now_s - told.at_s <= _REPORT_VALID_S
        return told.suspended if told is not None and known else None
