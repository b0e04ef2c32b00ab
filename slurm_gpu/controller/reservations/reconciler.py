"""Create approved reservations in Slurm, release unused reservations, and delete ended reservations.

The table in slurm-gpudbd is authoritative. Each cycle makes Slurm agree with the table, so no reservation is
left over after a crash, a restart or a loss of slurmctld's state. A reservation that has ended in the table
is deleted in Slurm, never the reverse. Any slurm-gpuctld that takes over, even on the host of a backup
slurmctld, therefore reaches the same state. Only reservations with the name, user and nodes of a row are
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import Reservations as Settings
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.reservations.replacement import ReservationRepairer
from slurm_gpu.controller.reservations.rows import ReservationTable
from slurm_gpu.controller.reservations.use import ReservationUse, ends_s, use_of, whose
from slurm_gpu.controller.reservations.windows import is_reserved
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmError
from slurm_gpu.http.identity import uid_of
from slurm_gpu.slurm.reservations import NodesBusyError, ReservationClient, SlurmReservation
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import format_duration
from slurm_gpu.wire.answers.reservation import Report, Reservation, ReservationState, id_of, in_words

log = logging.getLogger("slurm-gpuctld")

# Interval of requests to slurm-gpudbd; Slurm is checked after each answer, or after a while if none arrives.
EVERY_S = 10.0
# Maximum time between cycles that counts as idle; if it is exceeded, slurmctld was down.
_MOST_BETWEEN_S = 60.0
# Time before a reservation's end at which jobs that may outlast the reservation are detached from it.
_LET_GO_S = 300
# After this multiple of `release_unused`, a job that waits for an empty reservation is assumed to be unable
# to start.
_IN_VAIN = 2
# Minimum time left in the window for creating a reservation.
_LEAST_LEFT_S = 60


def is_ours(found: SlurmReservation, row: Reservation) -> bool:
    """Return whether Slurm's reservation belongs to this row; another one may have the same name.

    The reservation in Slurm may have additional users that operators added (`Users+=`).
    """
    return (
        found.name == row.name
        and row.user in found.users
        and row.nodes is not None
        and set(expand(found.nodes)) == set(expand(row.nodes))
    )


class ReservationReconciler(Duty):
    """Keeps Slurm's reservations in agreement with the table, and tracks how long each has been idle."""

    def __init__(
        self,
        settings: Settings,
        slurm: ReservationClient,
        table: ReservationTable,
        clock: Clock,
        acts: AuditReporter,
        timezone: ZoneInfo,
        repairer: ReservationRepairer,
        uid_of: Callable[[str], int | None] = uid_of,
    ) -> None:
        super().__init__(clock, "reservations could not be updated: %s", "reservations are updated again")
        self._uid_of = uid_of
        self._settings, self._slurm, self._table, self._repairer = settings, slurm, table, repairer
        self._acts, self._timezone = acts, timezone
        self._ask_s = self._latest_s = 0.0
        self._reconciled_s: float | None = None
        self._idle_s: dict[int, float] = {}
        self._waited_s: dict[int, float] = {}
        """For each empty reservation, the time a job has waited while all reserved nodes were in service."""
        self._seen: frozenset[int] = frozenset()
        """IDs contained in the names of Slurm's reservations."""
        self._made: set[int] = set()
        self._released: set[int] = set()
        """IDs of the reservations that were reported as released."""
        self._in_use: set[int] = set()
        """IDs of the ended reservations that Slurm could not delete yet."""
        self._refused = OutageLog(log, "%s", clock)

    def rows(self) -> Iterable[Reservation] | None:
        """Return the table as last read; None before the first answer."""
        rows = self._table.rows
        return None if rows is None else rows.values()

    def prepare(self, view: QueueView) -> bool:
        """Query slurm-gpudbd regularly; return whether a response has arrived or is long overdue."""
        now = self._clock.monotonic()
        is_due = now >= self._ask_s
        if is_due:
            self._ask_s = now + EVERY_S
        came = self._table.poll(self._seen, begin=is_due)
        if not came and now < self._latest_s:
            return False
        self._latest_s = now + 2 * EVERY_S
        if not view.in_charge or self._table.rows is None:
            self._reconciled_s = None
            return False
        return True

    def work(self, view: QueueView) -> None:
        """Make Slurm agree with the table."""
        assert self._table.rows is not None
        try:
            self._reconcile(self._table.rows)
        except SlurmError:
            self._reconciled_s = None
            raise

    def _reconcile(self, rows: Mapping[int, Reservation]) -> None:
        there = {one.name: one for one in self._slurm.all()}
        self._seen = frozenset(number for name in there if (number := id_of(name)) is not None)
        now_s = int(self._clock.wall())
        self._repairer.update([row for row in rows.values() if row.state.is_promised])
        uses = self._uses([row for row in rows.values() if _has_begun(row, now_s)], there, now_s)
        for number, row in rows.items():
            found = there.get(row.name)
            if row.state.is_promised:
                use = uses.get(number)
                self._keep(row, found, use, now_s)
                if found is not None and is_ours(found, row):
                    self._release_jobs(row, use, there.values(), rows.values(), now_s)
                    if use is None or not use.is_in_use:
                        self._replace_nodes(row, there.values(), rows.values(), now_s)
            elif found is not None and is_ours(found, row) and self._table.is_reported(number):
                self._remove(row)
        self._released &= uses.keys()
        for seconds in (self._idle_s, self._waited_s):
            for number in seconds.keys() - uses.keys():
                del seconds[number]
        self._reconciled_s = self._clock.monotonic()

    def _keep(
        self, row: Reservation, found: SlurmReservation | None, use: ReservationUse | None, now_s: int
    ) -> None:
        """Ensure that an approved reservation exists in Slurm, and report changes to the table."""
        assert row.start_s is not None
        assert row.end_s is not None
        report = Report(
            id=row.id,
            at_s=now_s,
            state=row.state,
            error=row.error,
            first_job_id=row.first_job_id,
            first_eligible_s=row.first_eligible_s,
            first_start_s=row.first_start_s,
        )
        if use is not None and use.first is not None and row.first_start_s is None:
            report = replace(
                report,
                first_job_id=use.first.job_id,
                first_eligible_s=use.first.eligible_s,
                first_start_s=use.first.start_s,
            )
        was_used = report.first_start_s is not None
        if now_s >= row.end_s:
            why = "its window is over" if was_used else "its window is over, and it was not used"
            if found is None and row.error is not None:
                why += f"; it was not in Slurm: {row.error}"
            error = None if found is not None and is_ours(found, row) else row.error
            report = replace(report, state=ReservationState.ENDED, why=why, error=error)
        elif found is not None and not is_ours(found, row) and self._repairer.is_repaired(row, found):
            report = replace(report, error=None, nodes=found.nodes)
        elif found is not None and not is_ours(found, row):
            report = replace(report, error=f"Slurm has another reservation called {row.name}")
        else:
            if found is None:
                report = replace(report, error=self._make(row, now_s))
            elif row.error is not None:
                report = replace(report, error=None)
            if use is not None:
                report = replace(report, state=ReservationState.ACTIVE)
            if found is not None and use is not None:
                why_over = self._why_released(row, use, was_used=was_used)
                if why_over is not None:
                    report = replace(report, state=ReservationState.RELEASED, why=why_over)
                    if row.id not in self._released:  # slurm-gpudbd may refuse the report (see store_reports)
                        self._released.add(row.id)
                        self._acts.add(
                            "reservation released", row.name, why_over, row.state, ReservationState.RELEASED
                        )
        same = replace(report, state=row.state, error=row.error)
        is_news = report.state is not row.state or report.error != row.error or report.nodes is not None
        if is_news or (same.first_start_s is not None and row.first_start_s is None):
            self._table.report(report)

    def _make(self, row: Reservation, now_s: int) -> str | None:
        """Create the reservation in Slurm; return the error, or None if the reservation exists now."""
        assert row.start_s is not None
        assert row.end_s is not None
        if row.end_s - now_s < _LEAST_LEFT_S:
            return row.error
        # Slurm stores the user's name, and would admit any user who has this name now.
        if row.uid is not None and (uid := self._uid_of(row.user)) is not None and uid != row.uid:
            return f"{row.user} has uid {uid} now, but had uid {row.uid} when the reservation was requested"
        start_s = max(row.start_s, now_s)
        ignores_jobs = False
        try:
            try:
                self._create(row, start_s, ignores_jobs=False)
            except NodesBusyError:
                ignores_jobs = True
                self._create(row, start_s, ignores_jobs=True)
        except SlurmError as error:
            why = _words_of(error)
            if why != row.error:
                log.warning("reservation %s not created: %s; retrying", row.name, why)
            return why
        why = "it was approved"
        if row.id in self._made or row.state is ReservationState.ACTIVE:
            why = "Slurm had lost it"
        if ignores_jobs:
            why += "; jobs may still run on its nodes when it starts"
        self._made.add(row.id)
        assert row.nodes is not None
        assert row.end_s is not None
        made = in_words(row.nodes, start_s, row.end_s)
        self._acts.add("reservation made", row.name, why, "none", made)
        return None

    def _create(self, row: Reservation, start_s: int, *, ignores_jobs: bool) -> None:
        assert row.end_s is not None
        assert row.nodes is not None
        self._slurm.create(
            row.name,
            start_s=start_s,
            end_s=row.end_s,
            nodes=row.nodes,
            user=row.user,
            account=row.account,
            partition=row.partition,
            ignores_jobs=ignores_jobs,
        )

    def _release_jobs(
        self,
        row: Reservation,
        use: ReservationUse | None,
        in_slurm: Iterable[SlurmReservation],
        rows: Iterable[Reservation],
        now_s: int,
    ) -> None:
        """Detach jobs from a reservation that is about to end if no other reservation needs their nodes."""
        assert row.end_s is not None
        if use is None or not row.end_s - _LET_GO_S <= now_s < row.end_s:
            return
        for job in use.outliving:
            nodes, until_s = expand(job.nodes), ends_s(job)
            if is_reserved(nodes, row.end_s, until_s, in_slurm, rows, row, self._timezone):
                continue
            try:
                self._slurm.remove_job(job.job_id)
            except SlurmError as error:
                self._refused.failed(f"job {job.job_id} will end with {row.name}: {_words_of(error)}")
                continue
            why = (
                f"{row.name} ends before the job's time limit, and no reservation of the job's nodes follows"
            )
            self._acts.add("job continues beyond its reservation", f"job {job.job_id}", why, row.name, "none")

    def _replace_nodes(
        self,
        row: Reservation,
        in_slurm: Iterable[SlurmReservation],
        rows: Iterable[Reservation],
        now_s: int,
    ) -> None:
        """Replace nodes that went out of service; the next cycle reports the new nodes to the table."""
        nodes = self._repairer.instead(row, in_slurm, rows, now_s)
        if nodes is None:
            return
        lost = ", ".join(sorted(self._repairer.lost(row)))
        try:
            self._slurm.move(row.name, nodes)
        except SlurmError as error:
            self._refused.failed(f"reservation {row.name} lacks {lost}: {_words_of(error)}")
            return
        self._acts.add("reservation moved", row.name, f"out of service: {lost}", row.nodes or "", nodes)

    def _remove(self, row: Reservation) -> None:
        try:
            self._slurm.delete(row.name)
        except SlurmError as error:  # also raised while a job uses the reservation; retried later
            if row.id not in self._in_use:
                self._in_use.add(row.id)
                log.info(
                    "reservation %s is %s, but still in Slurm: %s", row.name, row.state, _words_of(error)
                )
                self._repel(row)
            return
        self._made.discard(row.id)
        self._in_use.discard(row.id)
        self._acts.add("reservation removed", row.name, f"it is {row.state}", f"{row.nodes}", "none")

    def _repel(self, row: Reservation) -> None:
        """Keep new jobs out of an ended reservation, which Slurm does not delete while jobs use it."""
        try:
            self._slurm.unset_magnetic(row.name)
        except SlurmError as error:
            log.warning("reservation %s still attracts jobs: %s", row.name, _words_of(error))

    def _uses(
        self, begun: Sequence[Reservation], there: Mapping[str, SlurmReservation], now_s: int
    ) -> Mapping[int, ReservationUse]:
        users = frozenset(user for row in begun for user in whose(row, there.get(row.name))[0])
        jobs = self._slurm.jobs_of(users) if begun else ()
        return {row.id: use_of(row, there.get(row.name), jobs, now_s) for row in begun}

    def _why_released(self, row: Reservation, use: ReservationUse, *, was_used: bool) -> str | None:
        """Return the reason for releasing a reservation before its end; None if it is not released."""
        unused_s = self._settings.release_unused_s
        all_there = not self._repairer.out(row.nodes or "")
        waits = use.waiting is not None and not use.is_in_use and all_there
        idle_s = self._counted(self._idle_s, row.id, counts=not use.is_used)
        waited_s = self._counted(self._waited_s, row.id, counts=waits)
        if idle_s >= unused_s:
            idle = format_duration(unused_s)
            return f"no job for {idle}: the training is over" if was_used else f"unused for {idle}"
        if use.waiting is not None and waited_s >= _IN_VAIN * unused_s:
            waited = format_duration(_IN_VAIN * unused_s)
            return f"job {use.waiting.job_id} did not start in {waited} although all nodes were free"
        return None

    def _counted(self, seconds: dict[int, float], number: int, *, counts: bool) -> float:
        """Update and return the seconds for which a condition has lasted, excluding outages of slurmctld."""
        if not counts:
            seconds[number] = 0.0
        elif number not in seconds or self._reconciled_s is None:
            seconds.setdefault(number, 0.0)
        else:
            seconds[number] += min(self._clock.monotonic() - self._reconciled_s, _MOST_BETWEEN_S)
        return seconds[number]


def _has_begun(row: Reservation, now_s: int) -> bool:
    return row.state.is_promised and row.start_s is not None and row.start_s <= now_s


def _words_of(error: SlurmError) -> str:
    """Return Slurm's message without the surrounding command and hints."""
    lines = str(error).splitlines()
    message = next((line for line in lines if "rror" in line), lines[-1] if lines else str(error))
    return message.rpartition("Error creating the reservation: ")[2].strip()[:500]
