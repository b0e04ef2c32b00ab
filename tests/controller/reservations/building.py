"""A slurmctld and a slurm-gpudbd with reservations in memory, and the reconciler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from zoneinfo import ZoneInfo

from slurm_gpu.config.site import Reservations as Settings
from slurm_gpu.config.site import Zone
from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.reservations.reconciler import EVERY_S, ReservationReconciler
from slurm_gpu.controller.reservations.replacement import ReservationRepairer
from slurm_gpu.controller.reservations.rows import ReservationTable
from slurm_gpu.errors import DatabaseError, SlurmError
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.reservations import NodesBusyError, ReservationUserJob, SlurmReservation
from slurm_gpu.wire.answers.reservation import Report, Reservation, ReservationState
from slurm_gpu.wire.answers.runs import AuditEvent
from tests.controller.fakes import NOON_S, Clock, make_node

UNUSED_S = 600.0
UTC = ZoneInfo("UTC")
WINDOW_S = 3600
ROW = Reservation(
    id=3,
    cluster="lab",
    user="alice",
    account="vision",
    partition="gpu",
    gpus=8,
    n_nodes=2,
    duration_s=WINDOW_S,
    earliest_s=NOON_S,
    why="paper",
    state=ReservationState.APPROVED,
    requested_s=NOON_S,
    start_s=NOON_S + 60,
    end_s=NOON_S + 60 + WINDOW_S,
    nodes="n[1-2]",
)
JOB = ReservationUserJob(
    job_id=17,
    state="RUNNING",
    user="alice",
    account="vision",
    partitions=frozenset({"gpu"}),
    reservation="sg_3",
    eligible_s=NOON_S + 10,
    start_s=NOON_S + 70,
    time_limit_s=1800,
    reason="None",
    nodes="n[1-2]",
)
SITES_OWN = SlurmReservation("maint", NOON_S, NOON_S + 9, "n[1-4]", frozenset({"root"}))


class Killed(BaseException):
    """Raised at the point where kill -9 ends the process."""


class Slurm:
    """slurmctld's reservations."""

    def __init__(self) -> None:
        self.there: dict[str, SlurmReservation] = {"maint": SITES_OWN}
        self.jobs: list[ReservationUserJob] = []
        self.busy = self.down = False
        self.refuses: str | None = None
        self.kills_after: str | None = None
        self.ignored: list[bool] = []
        self.no_longer_magnetic: list[str] = []
        self.removed_jobs: list[int] = []

    def all(self) -> Sequence[SlurmReservation]:
        if self.down:
            raise SlurmError("`scontrol show reservation` gave no answer")
        return list(self.there.values())

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
        if self.refuses:
            raise SlurmError(f"`scontrol create` failed (1): Error creating the reservation: {self.refuses}")
        if self.busy and not ignores_jobs:
            raise NodesBusyError("Error creating the reservation: Requested nodes are busy")
        self.ignored.append(ignores_jobs)
        self.there[name] = SlurmReservation(
            name, start_s, end_s, nodes, frozenset({user}), frozenset({account})
        )
        self._die("create")

    def move(self, name: str, nodes: str) -> None:
        if self.refuses:
            raise SlurmError(f"`scontrol update` failed (1): {self.refuses}")
        self.there[name] = replace(self.there[name], nodes=nodes)
        self._die("move")

    def delete(self, name: str) -> None:
        if any(job.reservation == name and job.state == "RUNNING" for job in self.jobs):
            raise SlurmError("delete_reservation: Requested reservation is in use")
        del self.there[name]
        self._die("delete")

    def unset_magnetic(self, name: str) -> None:
        self.no_longer_magnetic.append(name)
        if self.refuses:
            raise SlurmError(f"`scontrol update` failed (1): {self.refuses}")

    def remove_job(self, job_id: int) -> None:
        if self.refuses:
            raise SlurmError(f"`scontrol update` failed (1): {self.refuses}")
        self.removed_jobs.append(job_id)
        self.jobs = [replace(job, reservation="") if job.job_id == job_id else job for job in self.jobs]

    def jobs_of(self, users: frozenset[str]) -> Sequence[ReservationUserJob]:
        return [job for job in self.jobs if job.user in users]

    def _die(self, after: str) -> None:
        if self.kills_after == after:
            self.kills_after = None
            raise Killed


class Site:
    """The table of slurm-gpudbd, a Slurm, and a slurm-gpuctld that may be killed."""

    def __init__(self, *rows: Reservation) -> None:
        self.clock, self.slurm = Clock(), Slurm()
        self.rows = {row.id: row for row in rows or (ROW,)}
        self.down = self.takes_nothing = False
        self.reported: list[AuditEvent] = []
        self.in_charge = True
        self.nodes = [make_node(f"n{number}") for number in range(1, 7)]
        self.running: list[QueuedJob] = []
        self.uids: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        acts = AuditReporter(self.clock, self.reported.extend)
        table = ReservationTable(self.exchange, at_once)
        zones = {"z1": Zone("n[1-4]", None), "z2": Zone("n[5-6]", None)}
        repairer = ReservationRepairer(lambda _: self.nodes, lambda: self.running, zones, UTC, self.clock)
        self.controller = ReservationReconciler(
            Settings(None, UNUSED_S), self.slurm, table, self.clock, acts, UTC, repairer, self.uids.get
        )
        self.acts = acts

    def exchange(self, reports: Sequence[Report], ids: Collection[int]) -> Sequence[Reservation]:
        """Store reports as slurm-gpudbd does (tests/database/test_reservations.py)."""
        if self.down:
            raise DatabaseError("slurm-gpudbd cannot be reached")
        for report in () if self.takes_nothing else reports:
            row = self.rows[report.id]
            if row.state.is_promised:
                said = {
                    key: value for key, value in asdict(report).items() if key not in ("id", "at_s", "why")
                }
                said["nodes"] = row.nodes if report.nodes is None else report.nodes
                over = {"ended_s": report.at_s, "ended_why": report.why} if report.state.is_over else {}
                self.rows[report.id] = replace(row, **said, **over)
        return [row for row in self.rows.values() if not row.state.is_over or row.id in ids]

    def run_for(self, seconds: float = 2 * EVERY_S) -> None:
        """Run slurm-gpuctld, by default for two cycles, after which reports are stored."""
        end_s = self.clock.uptime_s + seconds
        while True:
            self.controller.run(QueueView(in_charge=self.in_charge))
            if self.clock.uptime_s >= end_s:
                return
            self.clock.advance(EVERY_S / 2)

    def goes_down(self, *names: str) -> None:
        self.nodes = [replace(node, state="down" if node.name in names else "idle") for node in self.nodes]

    def acted(self) -> list[str]:
        self.acts.close()
        return [act.action for act in self.reported]

    @property
    def row(self) -> Reservation:
        return self.rows[ROW.id]


def at_once(task: Callable[[], Sequence[Reservation]]) -> Future[Sequence[Reservation]]:
    future: Future[Sequence[Reservation]] = Future()
    try:
        future.set_result(task())
    except DatabaseError as error:
        future.set_exception(error)
    return future
