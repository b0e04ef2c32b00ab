"""Who uses a reservation: its first job, and whether a job is in it or about to be. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.database.reserve.reservation import Reservation
from slurm_gpu.slurm.reservations import JobAround

_WAITING = "PENDING"
_HOLDING = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING"}
)
_NOT_FOR_NODES = (
    "JobHeld",
    "Assoc",
    "QOS",
    "Account",
    "Partition",
    "Invalid",
    "Bad",
    "JobArrayTaskLimit",
    "Licenses",
)
"""How reasons begin that no nodes end: holds, limits, and what can never run."""


@dataclass(frozen=True, slots=True)
class Use:
    """What becomes of a reservation whose window has begun."""

    first: JobAround | None
    """Of the jobs that ran in it and are still known, the one that started first."""
    is_used: bool
    """A job is in it, or waits that could start in what is left of its window."""


def use_of(row: Reservation, jobs: Sequence[JobAround], now_s: int) -> Use:
    """Use of `row` by the jobs of its user, as slurmctld tells them."""
    in_it = [job for job in jobs if job.reservation == row.name]
    ran = [job for job in in_it if job.state != _WAITING and job.start_s is not None and job.nodes]
    first = min(ran, key=lambda job: (job.start_s or 0, job.job_id), default=None)
    is_used = any(job.state in _HOLDING for job in in_it) or any(
        _could_start(row, job, now_s) for job in jobs
    )
    return Use(first, is_used)


def _could_start(row: Reservation, job: JobAround, now_s: int) -> bool:
    """Whether it waits for nothing but nodes, and would end within the window.

    How few nodes would do is not known: squeue tells 4 of a job that waits with --nodes=1-4.
    """
    return (
        job.state == _WAITING
        and job.reservation in ("", row.name)
        and job.user == row.user
        and job.account == row.account
        and row.partition in job.partitions
        and job.eligible_s is not None
        and job.eligible_s <= now_s
        and not job.reason.lstrip("(").startswith(_NOT_FOR_NODES)
        and row.end_s is not None
        and job.time_limit_s is not None
        and now_s + job.time_limit_s <= row.end_s
    )
