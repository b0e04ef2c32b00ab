"""Who uses a reservation: its first job, and whether a job is in it or about to be. Pure functions."""

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
class ReservationUse:
    """What becomes of a reservation whose window has begun."""

    first: ReservationUserJob | None
    """Of the jobs that ran in it and are still known, the one that started first."""
    is_in_use: bool
    """A job is in it."""
    waiting: ReservationUserJob | None
    """Of the jobs that wait, and could start in what is left of its window, the first."""
    beyond: tuple[ReservationUserJob, ...] = ()
    """Of the jobs in it those that it would end: Slurm looks at no time limit when it draws one in."""

    @property
    def is_used(self) -> bool:
        """Whether somebody has, or seems to have, use for it."""
        return self.is_in_use or self.waiting is not None


def use_of(
    row: Reservation, found: SlurmReservation | None, jobs: Sequence[ReservationUserJob], now_s: int
) -> ReservationUse:
    """Use of `row`, which is `found` in Slurm, by the jobs of its users, as slurmctld tells them."""
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
    """When a job that holds nodes has used up its time limit; never, for one without."""
    if job.start_s is None or job.time_limit_s is None:
        return math.inf
    return job.start_s + job.time_limit_s


def whose(row: Reservation, found: SlurmReservation | None) -> tuple[frozenset[str], frozenset[str]]:
    """Its users and accounts: those that an operator added in Slurm by hand, too."""
    users, accounts = {row.user}, {row.account}
    if found is not None:
        users |= {name for name in found.users if not name.startswith("-")}
        accounts |= {name for name in found.accounts if not name.startswith("-")}
    return frozenset(users), frozenset(accounts)


def _could_start(row: Reservation, job: ReservationUserJob, now_s: int) -> bool:
    """Whether it waits for nothing but nodes, and would end within the window.

    How few nodes would do is not known: squeue tells 4 of a job that waits with --nodes=1-4.
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
