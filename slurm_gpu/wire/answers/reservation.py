"""Define a reservation, which a user requests, an operator approves and slurm-gpuctld creates in Slurm."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.text.hostlist import expand

MOST_REPORTS = 100
MOST_IDS = 500
"""The maximum numbers of reports and of IDs in one request."""
CLOCK_AHEAD = "slurm-gpuctld's clock is"
"""The first words of the error if slurm-gpudbd rejects the time of reports (store.store_reports)."""
_NAME = re.compile(r"sg_([1-9]\d{0,17})")


class ReservationState(StrEnum):
    """The state of a reservation."""

    REQUESTED = "requested"
    APPROVED = "approved"
    ACTIVE = "active"
    """The reservation's window has begun."""
    ENDED = "ended"
    DENIED = "denied"
    CANCELLED = "cancelled"
    RELEASED = "released"
    """The reservation ended early, because its user did not use it."""

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self not in (ReservationState.REQUESTED, ReservationState.APPROVED, ReservationState.ACTIVE)

    @property
    def is_promised(self) -> bool:
        """Whether the reservation is approved and not over, so that nodes are assigned to it."""
        return self in (ReservationState.APPROVED, ReservationState.ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation in slurm-gpudbd; times are epoch seconds. `full` is False if `why` is hidden."""

    id: int
    cluster: str
    user: str
    account: str
    partition: str
    gpus: int
    """The total number of GPUs on all nodes."""
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
    """The promised start."""
    end_s: int | None = None
    """The end of the window in Slurm, which exceeds the duration by the allowed delay of the start."""
    nodes: str | None = None
    error: str | None = None
    """The reason why slurm-gpuctld cannot create or delete the reservation in Slurm."""
    first_job_id: int | None = None
    first_eligible_s: int | None = None
    first_start_s: int | None = None
    ended_s: int | None = None
    ended_why: str | None = None
    full: bool = True
    uid: int | None = None
    """The user's uid at the time of the request; None if an earlier release stored the request."""

    def __post_init__(self) -> None:
        """Raise ValueError if a promised reservation lacks its start, end or nodes."""
        if self.state.is_promised and None in (self.start_s, self.end_s, self.nodes):
            raise ValueError(f"reservation {self.id} is approved or active, but lacks start, end or nodes")
        expand("" if self.nodes is None else self.nodes)

    @property
    def name(self) -> str:
        """The name of the reservation in Slurm."""
        return f"sg_{self.id}"

    @property
    def was_made(self) -> bool:
        """Whether a reservation that has ended ever existed in Slurm. If not, its error is still set."""
        return self.first_start_s is not None or self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of slurm-gpuctld on one reservation."""

    id: int
    at_s: int
    state: ReservationState
    """The state: approved or active while the reservation continues, and ended or released afterwards."""
    why: str | None = None
    error: str | None = None
    first_job_id: int | None = None
    first_eligible_s: int | None = None
    first_start_s: int | None = None
    nodes: str | None = None
    """The nodes, after those that went out of service have been replaced; None if unchanged."""


def in_words(nodes: str, start_s: int, end_s: int) -> str:
    """Return the text of an audit event, such as "n[1-2] from 2026-11-24T12:38Z to 2026-11-26T00:38Z"."""
    start, end = (f"{dt.datetime.fromtimestamp(at_s, dt.UTC):%Y-%m-%dT%H:%MZ}" for at_s in (start_s, end_s))
    return f"{nodes} from {start} to {end}"


def id_of(name: str) -> int | None:
    """Return the ID in the name of a reservation in Slurm; None for one that slurm-gpu did not create."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
