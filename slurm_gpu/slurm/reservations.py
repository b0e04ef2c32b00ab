"""Read Slurm's reservations and their jobs; create, change and delete reservations as root or SlurmUser."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import SlurmCommands
from slurm_gpu.slurm.scontrol import parse_time_limit

_BEGIN = re.compile(r"^(?=ReservationName=)", re.MULTILINE)
# The name of a reservation may have spaces and newlines.
_RECORD = re.compile(r"ReservationName=(.*?) (StartTime=\S+ EndTime=.*)", re.DOTALL)
_FIELD = re.compile(r"(\w+)=(\S*)")
_COLUMNS = (
    "JobID",
    "State",
    "UserName",
    "Account",
    "Partition",
    "Reservation",
    "EligibleTime",
    "StartTime",
    "TimeLimit",
    "Reason",
    "NodeList",
)
_NOTHING = frozenset({"", "(null)", "N/A", "n/a"})
_BUSY = "Requested nodes are busy"
_HOUR_S = 3600
# Flags of repeated reservations, with the days between repetitions. WEEKDAY and WEEKEND count as daily.
_REPEATED_EACH_DAYS = {"DAILY": 1, "WEEKDAY": 1, "WEEKEND": 1, "WEEKLY": 7}
# The largest number of calculated repetitions: more than one for each hour of a year.
_MAX_REPETITIONS = 10_000


class NodesBusyError(SlurmError):
    """Raised if running jobs would still be on the nodes when the reservation begins."""


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """A reservation that slurm-gpu or the site created.

    Times are epoch seconds. `nodes` is a hostlist; "" if there are none, for example in a reservation of
    licences.
    """

    name: str
    start_s: int
    end_s: int
    nodes: str
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    partition: str = ""
    """The partition of the reservation's jobs; "" if any partition is allowed."""

    def spans(self, until_s: int, zone: ZoneInfo) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each repetition that begins before `until_s`.

        A reservation without repetition has one start and end. Slurm repeats reservations in local time, in
        the time zone `zone` of its host: 02:00 remains 02:00 when daylight saving time begins or ends.
        """
        days = min((_REPEATED_EACH_DAYS[flag] for flag in self.flags & _REPEATED_EACH_DAYS.keys()), default=0)
        is_hourly = "HOURLY" in self.flags
        for number in range(_MAX_REPETITIONS if is_hourly or days else 1):
            if is_hourly:
                start_s, end_s = (at_s + number * _HOUR_S for at_s in (self.start_s, self.end_s))
            else:
                start_s, end_s = (
                    _days_later(at_s, number * days, zone) for at_s in (self.start_s, self.end_s)
                )
            if start_s >= until_s:
                return
            yield start_s, end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationUserJob:
    """A job of a user who has a reservation."""

    job_id: int
    state: str
    """Upper case base state, such as PENDING."""
    user: str
    account: str
    partitions: frozenset[str]
    reservation: str
    """The reservation (also MAGNETIC) in which the job runs or that it requests; "" if there is none."""
    eligible_s: int | None
    start_s: int | None
    """The start time; for a pending job, the start that Slurm expects."""
    time_limit_s: int | None
    reason: str
    nodes: str
    """The nodes of the job, even after its end; "" if it never started.

    In contrast, `start_s` is also set for a job that was cancelled before its start.
    """


class ReservationClient(SlurmCommands):
    """Manages reservations through scontrol and squeue. All methods raise SlurmError on failure."""

    def all(self) -> list[SlurmReservation]:
        """Return all reservations of slurmctld, including those of the site."""
        return [
            _read(record)
            for record in _BEGIN.split(self._ask("--oneliner", "show", "reservation"))
            if "=" in record
        ]

    def create(
        self,
        name: str,
        *,
        start_s: int,
        end_s: int,
        nodes: str,
        user: str,
        account: str,
        partition: str,
        ignores_jobs: bool = False,
    ) -> None:
        """Create a reservation of whole nodes that attracts this user's jobs in this account (MAGNETIC).

        Unless `ignores_jobs` is true, raise NodesBusyError if running jobs would still be on the nodes at its
        start.
        """
        flags = "MAGNETIC,IGNORE_JOBS" if ignores_jobs else "MAGNETIC"
        try:
            self._ask(
                "create",
                "reservation",
                f"ReservationName={name}",
                f"StartTime=uts{start_s}",
                f"EndTime=uts{end_s}",
                f"Nodes={nodes}",
                f"PartitionName={partition}",
                f"Users={user}",
                f"Accounts={account}",
                f"Flags={flags}",
            )
        except SlurmError as error:
            if _BUSY in str(error):
                raise NodesBusyError(str(error)) from error
            raise

    def delete(self, name: str) -> None:
        """Delete a reservation; Slurm refuses while a job is in it."""
        self._ask("delete", f"ReservationName={name}")

    def move(self, name: str, nodes: str) -> None:
        """Replace the nodes of a reservation."""
        self._ask("update", f"ReservationName={name}", f"Nodes={nodes}")

    def unset_magnetic(self, name: str) -> None:
        """Remove the flag MAGNETIC. Jobs in the reservation remain, and others can enter it only by name."""
        self._ask("update", f"ReservationName={name}", "Flags-=MAGNETIC")

    def remove_job(self, job_id: int) -> None:
        """Remove a running job from its reservation, so that it continues after the reservation's end."""
        self._ask("update", f"JobId={job_id}", "ReservationName=")

    def jobs_of(self, users: Collection[str]) -> list[ReservationUserJob]:
        """Return the jobs of some users in slurmctld's memory, including ended ones."""
        if not users:
            return []
        return [
            _job(row) for row in self._squeue(_COLUMNS, "--states=all", f"--user={','.join(sorted(users))}")
        ]

    def _ask(self, *words: str) -> str:
        return self._query("scontrol", *words)


def _read(record: str) -> SlurmReservation:
    name, rest = match.groups() if (match := _RECORD.match(record)) else ("", "")
    fields = dict(reversed(_FIELD.findall(rest)))  # the first value of a key counts: a comment comes last
    try:
        return SlurmReservation(
            name,
            int(fields["StartTime"]),
            int(fields["EndTime"]),
            "" if fields.get("Nodes", "") in _NOTHING else fields["Nodes"],
            _names(fields.get("Users", "")),
            _names(fields.get("Accounts", "")),
            _names(fields.get("Flags", "")),
            "" if fields.get("PartitionName", "") in _NOTHING else fields["PartitionName"],
        )
    except (KeyError, ValueError) as error:
        raise SlurmError(
            f"scontrol printed a reservation that cannot be read ({error!r}): {record}"
        ) from None


def _days_later(at_s: int, days: int, zone: ZoneInfo) -> int:
    if not days:
        return at_s
    return int((dt.datetime.fromtimestamp(at_s, zone) + dt.timedelta(days=days)).timestamp())


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in _NOTHING else frozenset(text.split(","))


def _job(words: Sequence[str]) -> ReservationUserJob:
    row = dict(zip(_COLUMNS, (word.strip() for word in words), strict=True))
    return ReservationUserJob(
        job_id=int(row["JobID"]),
        state=row["State"],
        user=row["UserName"],
        account=row["Account"],
        partitions=frozenset(row["Partition"].split(",")),
        reservation="" if row["Reservation"] in _NOTHING else row["Reservation"],
        eligible_s=_epoch(row["EligibleTime"]),
        start_s=_epoch(row["StartTime"]),
        time_limit_s=parse_time_limit(row["TimeLimit"]),
        reason=row["Reason"],
        nodes="" if row["NodeList"] in _NOTHING else row["NodeList"],
    )


def _epoch(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) else None
