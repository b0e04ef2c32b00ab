"""A reservation: asked for by a user, approved by an operator, made in Slurm by slurm-gpuctld."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.text.hostlist import expand

MOST_REPORTS = 100
MOST_IDS = 500
"""So many are told, and asked for by number, in one request."""
CLOCK_AHEAD = "slurm-gpuctld's clock is"
"""How the error begins where nothing is taken of what slurm-gpuctld tells (store.store_reports)."""
_NAME = re.compile(r"sg_([1-9]\d{0,17})")


class ReservationState(StrEnum):
    """How far one has come."""

    REQUESTED = "requested"
    APPROVED = "approved"
    ACTIVE = "active"
    """Its window has begun."""
    ENDED = "ended"
    DENIED = "denied"
    CANCELLED = "cancelled"
    RELEASED = "released"
    """Given up early, since nobody used it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self not in (ReservationState.REQUESTED, ReservationState.APPROVED, ReservationState.ACTIVE)

    @property
    def is_promised(self) -> bool:
        """Whether its nodes are its user's for its window."""
        return self in (ReservationState.APPROVED, ReservationState.ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One row of the table; times are epoch seconds. `full` is False where why is not shown."""

    id: int
    cluster: str
    user: str
    account: str
    partition: str
    gpus: int
    """In all."""
    gpu_type: str | None = None
    n_nodes: int
    duration_s: int
    earliest_s: int
    latest_s: int | None = None
    why: str | None
    state: ReservationState
    requested_s: int
    decided_s: int | None = None
    decided_by: str | None = None
    decided_why: str | None = None
    start_s: int | None = None
    """The promise."""
    end_s: int | None = None
    """Of the window in Slurm: the duration, and for how long a start may be late."""
    nodes: str | None = None
    error: str | None = None
    """What keeps slurm-gpuctld from making it, or taking it away."""
    first_job_id: int | None = None
    first_eligible_s: int | None = None
    first_start_s: int | None = None
    ended_s: int | None = None
    ended_why: str | None = None
    full: bool = True
    uid: int | None = None
    """Of the user when it was asked for; None where an earlier release stored it and left it open."""

    def __post_init__(self) -> None:
        """Raise ValueError where it is promised, and not all is there that this takes."""
        if self.state.is_promised and None in (self.start_s, self.end_s, self.nodes):
            raise ValueError(f"reservation {self.id} is promised, without a start, an end or nodes")
        expand("" if self.nodes is None else self.nodes)

    @property
    def name(self) -> str:
        """What it is called in Slurm."""
        return f"sg_{self.id}"

    @property
    def was_made(self) -> bool:
        """Whether Slurm had it, of one that is over: of the others its error stays."""
        return self.first_start_s is not None or self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What slurm-gpuctld tells of one."""

    id: int
    at_s: int
    state: ReservationState
    """approved or active where it goes on, ended or released where it is over."""
    why: str | None = None
    error: str | None = None
    first_job_id: int | None = None
    first_eligible_s: int | None = None
    first_start_s: int | None = None
    nodes: str | None = None
    """Where it is now, with others in place of nodes that went out of service; None: where it was."""


def in_words(nodes: str, start_s: int, end_s: int) -> str:
    """For the audit, such as "n[1-2] from 2026-11-24T12:38Z to 2026-11-26T00:38Z"."""
    start, end = (f"{dt.datetime.fromtimestamp(at_s, dt.UTC):%Y-%m-%dT%H:%MZ}" for at_s in (start_s, end_s))
    return f"{nodes} from {start} to {end}"


def id_of(name: str) -> int | None:
    """Which reservation Slurm's of this name may be; None for a name that is surely none of ours."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
