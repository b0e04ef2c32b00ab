"""Explain why a job is pending: Slurm's reason, the jobs ahead of it, and its expected start.

All functions are pure. Both the terminal and the pages use this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.monitor.cluster.reasons import meaning, short
from slurm_gpu.monitor.cluster.summary import gpus_in_all
from slurm_gpu.wire.answers.cluster import ClusterJob, ClusterState

_PENDING = "PENDING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The reason why a job waits, and its place among the pending jobs that request one of its partitions.

    Each array task counts as a job. Held jobs have no place.
    """

    reason: str
    """Slurm's code, such as Priority."""
    meaning: str | None
    """The reason in words; None if it is unknown."""
    place: int | None
    """The place by priority, beginning with 1; None if the job is held or its priority is unknown."""
    n_jobs: int
    """The number of jobs to which `place` refers, including this job."""
    gpus_ahead: float | None
    """The number of GPUs that the jobs ahead request; None if the place or a number of GPUs is unknown."""
    start_s: int | None
    """The start that Slurm expects; None if it has no estimate, or if the estimate has passed."""


def find_job(state: ClusterState, job_id: str) -> ClusterJob | None:
    """Return the pending or running job with this ID, raw or as Slurm prints it; None if there is none."""
    return next((job for job in state.jobs if job_id in (job.id, str(job.job_id))), None)


def wait_of(state: ClusterState, job: ClusterJob) -> Wait | None:
    """Return why a job waits; None if it is not pending."""
    if job.state != _PENDING:
        return None
    partitions = set(job.partition.split(","))
    others = [
        other
        for other in state.jobs
        if other.state == _PENDING
        and other.priority
        and other.job_id != job.job_id
        and not partitions.isdisjoint(other.partition.split(","))
    ]
    ahead = [other for other in others if _order(other) < _order(job)] if job.priority else None
    gpus = [None if other.n_gpus is None else other.n_gpus * other.n_tasks for other in ahead or ()]
    return Wait(
        reason=short(job.reason),
        meaning=meaning(job.reason),
        place=None if ahead is None else 1 + sum(other.n_tasks for other in ahead),
        n_jobs=job.n_tasks + sum(other.n_tasks for other in others),
        gpus_ahead=None if ahead is None else gpus_in_all(gpus),
        start_s=job.start_s if job.start_s is not None and job.start_s > state.as_of_s else None,
    )


def _order(job: ClusterJob) -> tuple[int, int, int]:
    """Return a sort key. Among jobs with the same priority, Slurm considers the earliest submission first."""
    return -(job.priority or 0), job.submit_s or 0, job.job_id
