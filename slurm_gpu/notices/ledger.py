"""Record each notice and each end of a job on disk before the action, to avoid repeated actions.

A notice that was being sent when slurm-gpuctld was killed is not sent again, because it may have arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from slurm_gpu.files.state_file import read_state, write_state
from slurm_gpu.notices.finding import NoticedRun

FILE_NAME = "notices.json"
_VERSION = 1
DAY_S = 86400.0
KEPT_S = 7 * DAY_S


class DeliveryState(StrEnum):
    """The state of one notice on one channel."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The notice may have arrived. It is not sent again, and no job is ended because of it."""
    OVER = "over"
    """The alert ended before the notice could be sent."""


@dataclass(slots=True, kw_only=True)
class Delivery:
    """The delivery of one notice on one channel."""

    state: DeliveryState = DeliveryState.WAITING
    attempts: int = 0
    at_s: float = 0.0
    """Time of the last attempt."""
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Notice:
    """One message to one user."""

    id: str
    user: str
    kind: str
    stage: int
    runs: dict[NoticedRun, float]
    """The runs that the notice covers, each with the start of its alert."""
    created_s: float
    deliveries: dict[str, Delivery]
    """Deliveries by channel."""
    audited: bool = False

    @property
    def sent_s(self) -> float | None:
        """Return the time at which the notice was first sent; None unless it was certainly sent."""
        times = [one.at_s for one in self.deliveries.values() if one.state is DeliveryState.SENT]
        return min(times, default=None)

    @property
    def is_void(self) -> bool:
        """Whether the notice was never sent because the alert ended."""
        return all(one.state is DeliveryState.OVER for one in self.deliveries.values())

    @property
    def waits(self) -> bool:
        """Whether the notice must still be sent on some channel."""
        return any(one.state is DeliveryState.WAITING for one in self.deliveries.values())


class EndState(StrEnum):
    """The state of a job that slurm-gpuctld ends."""

    ENDING = "ending"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class End:
    """A job that slurm-gpuctld ended or was about to end."""

    run: NoticedRun
    id: str
    user: str
    name: str
    n_gpus: float
    at_s: float
    how: str
    """`cancel` or `hold`."""
    since_s: float
    state: EndState = EndState.ENDING
    audited: bool = False
    why: str = ""
    """The reason for the failure."""


@dataclass(slots=True)
class Ledger:
    """All notices and ended jobs."""

    notices: list[Notice] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)

    def last_notice(self, run: NoticedRun, kind: str, stage: int = 0) -> Notice | None:
        """Return the last notice of this kind and stage about this run; None if there is none."""
        for one in reversed(self.notices):
            if one.kind == kind and one.stage == stage and run in one.runs and not one.is_void:
                return one
        return None

    def n_within_a_day(self, user: str, now_s: float) -> int:
        """Count the notices to a user in the last 24 hours, including those that may not have been sent."""
        return sum(
            one.user == user and now_s - one.created_s < DAY_S and not one.is_void for one in self.notices
        )

    def first_of_day_s(self, user: str, now_s: float) -> float | None:
        """Return when the first notice to a user in the last 24 hours was created; None if there was none."""
        times = [
            one.created_s
            for one in self.notices
            if one.user == user and now_s - one.created_s < DAY_S and not one.is_void
        ]
        return min(times, default=None)

    def end_of(self, run: NoticedRun) -> End | None:
        """Return the record of how slurm-gpuctld ended this run; None if there is none."""
        return next((one for one in reversed(self.ended) if one.run == run), None)

    def take_back(self, runs: Collection[NoticedRun], kind: str) -> bool:
        """Remove these runs from notices of this kind; return whether any were removed."""
        found = False
        for one in self.notices:
            if one.kind == kind:
                for run in one.runs.keys() & set(runs):
                    del one.runs[run]
                    found = True
        return found

    def prune(self, running: Collection[NoticedRun], now_s: float) -> None:
        """Remove entries older than a week that concern no running job."""
        self.notices = [
            one
            for one in self.notices
            if now_s - one.created_s < KEPT_S or not one.runs.keys().isdisjoint(running)
        ]
        self.ended = [one for one in self.ended if now_s - one.at_s < KEPT_S]

    def waiting(self) -> Iterator[tuple[Notice, str, Delivery]]:
        """Yield the pending deliveries, oldest first."""
        for notice in self.notices:
            for channel, delivery in notice.deliveries.items():
                if delivery.state is DeliveryState.WAITING:
                    yield notice, channel, delivery

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that is described in section 6 of docs/contracts.md."""
        return {
            "version": _VERSION,
            "notices": [
                asdict(one) | {"runs": [[*run, since_s] for run, since_s in one.runs.items()]}
                for one in self.notices
            ],
            "ended": [
                {
                    "job_id": one.run.job_id,
                    "id": one.id,
                    "start_s": one.run.start_s,
                    "user": one.user,
                    "name": one.name,
                    "gpus": one.n_gpus,
                    "at_s": one.at_s,
                    "then": one.how,
                    "since_s": one.since_s,
                    "state": str(one.state),
                    "audited": one.audited,
                    "why": one.why,
                }
                for one in self.ended
            ],
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Ledger:
        """Parse the output of `to_json`; raise ValueError, KeyError or TypeError for anything else."""
        if plain["version"] != _VERSION:
            raise ValueError(f"written by another version of slurm-gpu ({plain['version']})")
        return cls([_notice(one) for one in plain["notices"]], [_end(one) for one in plain["ended"]])


# Kinds that had another name in the ledger of 0.2.
_RENAMED_KINDS = {"held_idle": "never_used"}


def _notice(plain: Mapping[str, Any]) -> Notice:
    kind = str(plain["kind"])
    return Notice(
        id=str(plain["id"]),
        user=str(plain["user"]),
        kind=_RENAMED_KINDS.get(kind, kind),
        stage=int(plain["stage"]),
        runs={NoticedRun(int(job), int(start_s)): float(since_s) for job, start_s, since_s in plain["runs"]},
        created_s=float(plain["created_s"]),
        audited=bool(plain["audited"]),
        deliveries={
            str(channel): Delivery(
                state=DeliveryState(one["state"]),
                attempts=int(one["attempts"]),
                at_s=float(one["at_s"]),
                why=str(one["why"]),
            )
            for channel, one in plain["deliveries"].items()
        },
    )


def _end(plain: Mapping[str, Any]) -> End:
    return End(
        run=NoticedRun(int(plain["job_id"]), int(plain["start_s"])),
        id=str(plain["id"]),
        user=str(plain["user"]),
        name=str(plain["name"]),
        n_gpus=float(plain["gpus"]),
        at_s=float(plain["at_s"]),
        how=str(plain["then"]),
        since_s=float(plain["since_s"]),
        state=EndState(plain["state"]),
        audited=bool(plain["audited"]),
        why=str(plain["why"]),
    )


def read(path: Path) -> Ledger:
    """Read the ledger; return an empty one if there is no file; raise OutsideError if it is unreadable."""
    advice = ": no notices are sent and no jobs are ended; if you move it away, all notices are sent again"
    found = read_state(path, Ledger.from_json, advice)
    return Ledger() if found is None else found


def after_a_kill(ledger: Ledger) -> Sequence[Notice]:
    """Mark deliveries that an earlier process had begun as unknown, and return their notices."""
    found = []
    for notice in ledger.notices:
        for delivery in notice.deliveries.values():
            if delivery.state is DeliveryState.SENDING:
                delivery.state = DeliveryState.UNKNOWN
                delivery.why = "slurm-gpuctld ended while sending it"
                found.append(notice)
    return found


def write(path: Path, ledger: Ledger, owner_uid: int) -> None:
    """Write the ledger, readable only by SlurmUser (`owner_uid`); raise OutsideError on failure."""
    write_state(path, ledger.to_json(), owner_uid)
