"""Determine the use of a reservation by pure functions: its first job, running jobs and waiting jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.slurm.reservations import ReservationUserJob, SlurmReservation
from slurm_gpu.wire.answers.reservation import Reservation

_WAITING = "PENDING"
_HOLDING = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING"}
)
# Prefixes of pending reasons that free nodes do not resolve: holds, limits and impossible requests.
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


@dataclass(frozen=True, slots=True)
class ReservationUse:
    """The use of a reservation whose window has begun."""

    first: ReservationUserJob | None
    """The earliest known job that ran in the reservation."""
    is_in_use: bool
    """Whether a job runs in the reservation."""
    waiting: ReservationUserJob | None
    """The first waiting job that could still start in the reservation's window."""
    outliving: tuple[ReservationUserJob, ...] = ()
    """Running jobs whose time limits are later than the reservation's end; Slurm ends them at that time."""

    @property
    def is_used(self) -> bool:
        """Whether a job uses the reservation, or a job that could use it is waiting."""
        return self.is_in_use or self.waiting is not None


def use_of(
    row: Reservation, found: SlurmReservation | None, jobs: Sequence[ReservationUserJob], now_s: int
) -> ReservationUse:
    """Return the use of a reservation by its users' jobs; `found` is the reservation in Slurm."""
    in_it = [job for job in jobs if job.reservation == row.name]
    ran = [job for job in in_it if job.state != _WAITING and job.start_s is not None and job.nodes]
    first = min(ran, key=lambda job: (job.start_s or 0, job.job_id), default=None)
    holding = [job for job in in_it if job.state in _HOLDING]
    users, accounts = whose(row, found)
    could = (
        job for job in jobs if job.user in users and job.account in accounts and _could_start(row, job, now_s)
    )
    return ReservationUse(
        first,
        bool(holding),
        min(could, key=lambda job: job.job_id, default=None),
        tuple(job for job in holding if row.end_s is not None and ends_s(job) > row.end_s),
    )


def ends_s(job: ReservationUserJob) -> float:
    """Return the time at which a running job reaches its time limit; infinity if the job has no limit."""
    if job.start_s is None or job.time_limit_s is None:
        return math.inf
    return job.start_s + job.time_limit_s


def whose(row: Reservation, found: SlurmReservation | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return a reservation's users and accounts, including those that an operator added in Slurm."""
    users, accounts = {row.user}, {row.account}
    if found is not None:
        users |= {name for name in found.users if not name.startswith("-")}
        accounts |= {name for name in found.accounts if not name.startswith("-")}
    return frozenset(users), frozenset(accounts)


def _could_start(row: Reservation, job: ReservationUserJob, now_s: int) -> bool:
    """Return whether a job waits only for nodes and, if it started now, would end within the window.

    The number of nodes is not checked, because the minimum is unknown: for a waiting job with --nodes=1-4,
    squeue shows 4.
    """
    return (
        job.state == _WAITING
        and job.reservation in ("", row.name)
        and row.partition in job.partitions
        and job.eligible_s is not None
        and job.eligible_s <= now_s
        and not job.reason.lstrip("(").startswith(_NOT_FOR_NODES)
        and row.end_s is not None
        and job.time_limit_s is not None
        and now_s + job.time_limit_s <= row.end_s
    )
