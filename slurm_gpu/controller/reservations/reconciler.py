"""Makes in Slurm what operators approved, gives up what nobody uses, and takes away what is over.

The table in slurm-gpudbd is what counts: each look makes Slurm agree with it, so that nothing is left over by
a kill -9, a restart, or a slurmctld that lost its state. What is over in the table is deleted in Slurm; never
the other way round, so that whoever goes on, here or beside the backup slurmctld, ends in the same state.
Of Slurm's reservations only those are touched that bear the name, the user and the nodes of a row.
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

EVERY_S = 10.0
"""So often slurm-gpudbd is asked; when it has answered Slurm is looked at, and so it is where it does not."""
_MOST_BETWEEN_S = 60.0
"""So much of the time between two looks counts as idle: where it was more, slurmctld was away."""
_LET_GO_S = 300
"""So long before it ends jobs are let go that may go on."""
_IN_VAIN = 2
"""For so many times `release_unused` a job may wait beside one that nobody is in: it cannot start there."""
_LEAST_LEFT_S = 60
"""With less of its window left, one is not made any more."""


def is_ours(found: SlurmReservation, row: Reservation) -> bool:
    """Whether Slurm's reservation is this row's, and not the site's of the same name.

    Operators may have let others in besides (`Users+=`).
    """
    return (
        found.name == row.name
        and row.user in found.users
        and row.nodes is not None
        and set(expand(found.nodes)) == set(expand(row.nodes))
    )


class ReservationReconciler(Duty):
    """Keeps for how long each reservation was idle."""

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
        super().__init__(clock, "reservations are not updated: %s", "reservations are updated again")
        self._uid_of = uid_of
        self._settings, self._slurm, self._table, self._repairer = settings, slurm, table, repairer
        self._acts, self._timezone = acts, timezone
        self._ask_s = self._latest_s = 0.0
        self._looked_s: float | None = None
        self._idle_s: dict[int, float] = {}
        self._waited_s: dict[int, float] = {}
        """For how long a job waits for each, while nobody is in it and all of its nodes are in service."""
        self._seen: frozenset[int] = frozenset()
        """Ids that names in Slurm speak of."""
        self._made: set[int] = set()
        self._given_up: set[int] = set()
        """Those that were told to be given up."""
        self._in_use: set[int] = set()
        """Those that are over, and that Slurm does not delete yet."""
        self._refused = OutageLog(log, "%s", clock)

    def rows(self) -> Iterable[Reservation] | None:
        """The table as last known; None before its first answer."""
        rows = self._table.rows
        return None if rows is None else rows.values()

    def prepare(self, view: QueueView) -> bool:
        """Ask slurm-gpudbd now and then; there is work when it has answered, or does not answer for long."""
        now = self._clock.monotonic()
        is_due = now >= self._ask_s
        if is_due:
            self._ask_s = now + EVERY_S
        came = self._table.poll(self._seen, begin=is_due)
        if not came and now < self._latest_s:
            return False
        self._latest_s = now + 2 * EVERY_S
        if not view.in_charge or self._table.rows is None:
            self._looked_s = None
            return False
        return True

    def work(self, view: QueueView) -> None:
        """Make Slurm agree with the table."""
        assert self._table.rows is not None
        try:
            self._look(self._table.rows)
        except SlurmError:
            self._looked_s = None
            raise

    def _look(self, rows: Mapping[int, Reservation]) -> None:
        there = {one.name: one for one in self._slurm.all()}
        self._seen = frozenset(number for name in there if (number := id_of(name)) is not None)
        now_s = int(self._clock.wall())
        self._repairer.look([row for row in rows.values() if row.state.is_promised])
        uses = self._uses([row for row in rows.values() if _has_begun(row, now_s)], there, now_s)
        for number, row in rows.items():
            found = there.get(row.name)
            if row.state.is_promised:
                use = uses.get(number)
                self._keep(row, found, use, now_s)
                if found is not None and is_ours(found, row):
                    self._let_go(row, use, there.values(), rows.values(), now_s)
                    if use is None or not use.is_in_use:
                        self._mend(row, there.values(), rows.values(), now_s)
            elif found is not None and is_ours(found, row) and self._table.is_told(number):
                self._remove(row)
        self._given_up &= uses.keys()
        for seconds in (self._idle_s, self._waited_s):
            for number in seconds.keys() - uses.keys():
                del seconds[number]
        self._looked_s = self._clock.monotonic()

    def _keep(
        self, row: Reservation, found: SlurmReservation | None, use: ReservationUse | None, now_s: int
    ) -> None:
        """What is promised is in Slurm, and what became of it in the table."""
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
            why = "its window is over" if was_used else "its window is over, and nobody used it"
            if found is None and row.error is not None:
                why += f"; Slurm did not have it: {row.error}"
            error = None if found is not None and is_ours(found, row) else row.error
            report = replace(report, state=ReservationState.ENDED, why=why, error=error)
        elif found is not None and not is_ours(found, row) and self._repairer.is_mended(row, found):
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
                why_over = self._why_given_up(row, use, was_used=was_used)
                if why_over is not None:
                    report = replace(report, state=ReservationState.RELEASED, why=why_over)
                    if row.id not in self._given_up:  # it may not be taken: see store_reports
                        self._given_up.add(row.id)
                        self._acts.add(
                            "reservation released", row.name, why_over, row.state, ReservationState.RELEASED
                        )
        same = replace(report, state=row.state, error=row.error)
        is_news = report.state is not row.state or report.error != row.error or report.nodes is not None
        if is_news or (same.first_start_s is not None and row.first_start_s is None):
            self._table.tell(report)

    def _make(self, row: Reservation, now_s: int) -> str | None:
        """Make it in Slurm; returns what stands in the way, None where it is there now."""
        assert row.start_s is not None
        assert row.end_s is not None
        if row.end_s - now_s < _LEAST_LEFT_S:
            return row.error
        # Slurm takes a name, and would let in whoever has it now.
        if row.uid is not None and (uid := self._uid_of(row.user)) is not None and uid != row.uid:
            return f"{row.user} is uid {uid} now, and was uid {row.uid} when this was asked for"
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
                log.warning("reservation %s cannot be made: %s; retrying", row.name, why)
            return why
        why = "it was approved"
        if row.id in self._made or row.state is ReservationState.ACTIVE:
            why = "Slurm had lost it"
        if ignores_jobs:
            why += "; jobs may still be on its nodes when it begins"
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

    def _let_go(
        self,
        row: Reservation,
        use: ReservationUse | None,
        in_slurm: Iterable[SlurmReservation],
        rows: Iterable[Reservation],
        now_s: int,
    ) -> None:
        """Shortly before it ends, have those of its jobs go on that would be in nobody's way."""
        assert row.end_s is not None
        if use is None or not row.end_s - _LET_GO_S <= now_s < row.end_s:
            return
        for job in use.beyond:
            nodes, until_s = expand(job.nodes), ends_s(job)
            if is_reserved(nodes, row.end_s, until_s, in_slurm, rows, row, self._timezone):
                continue
            try:
                self._slurm.remove_job(job.job_id)
            except SlurmError as error:
                self._refused.failed(f"job {job.job_id} ends with {row.name}: {_words_of(error)}")
                continue
            why = f"{row.name} ends before its time limit, and its nodes are nobody else's then"
            self._acts.add("job goes on beyond its reservation", f"job {job.job_id}", why, row.name, "none")

    def _mend(
        self,
        row: Reservation,
        in_slurm: Iterable[SlurmReservation],
        rows: Iterable[Reservation],
        now_s: int,
    ) -> None:
        """Have it on others in place of nodes that went out of service; the next look tells the table."""
        nodes = self._repairer.instead(row, in_slurm, rows, now_s)
        if nodes is None:
            return
        lost = ", ".join(sorted(self._repairer.lost(row)))
        try:
            self._slurm.move(row.name, nodes)
        except SlurmError as error:
            self._refused.failed(f"reservation {row.name} stays without {lost}: {_words_of(error)}")
            return
        self._acts.add("reservation moved", row.name, f"out of service: {lost}", row.nodes or "", nodes)

    def _remove(self, row: Reservation) -> None:
        try:
            self._slurm.delete(row.name)
        except SlurmError as error:  # also while a job is in it: then it is tried again when that has ended
            if row.id not in self._in_use:
                self._in_use.add(row.id)
                log.info(
                    "reservation %s is %s, and still in Slurm: %s", row.name, row.state, _words_of(error)
                )
                self._repel(row)
            return
        self._made.discard(row.id)
        self._in_use.discard(row.id)
        self._acts.add("reservation removed", row.name, f"it is {row.state}", f"{row.nodes}", "none")

    def _repel(self, row: Reservation) -> None:
        """Or one job after the other would keep it."""
        try:
            self._slurm.unset_magnetic(row.name)
        except SlurmError as error:
            log.warning("reservation %s still draws jobs: %s", row.name, _words_of(error))

    def _uses(
        self, begun: Sequence[Reservation], there: Mapping[str, SlurmReservation], now_s: int
    ) -> Mapping[int, ReservationUse]:
        users = frozenset(user for row in begun for user in whose(row, there.get(row.name))[0])
        jobs = self._slurm.jobs_of(users) if begun else ()
        return {row.id: use_of(row, there.get(row.name), jobs, now_s) for row in begun}

    def _why_given_up(self, row: Reservation, use: ReservationUse, *, was_used: bool) -> str | None:
        """Why it is over before its window is; None where it is not."""
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
            return f"job {use.waiting.job_id} did not start in {waited}, with all nodes free: it cannot"
        return None

    def _counted(self, seconds: dict[int, float], number: int, *, counts: bool) -> float:
        """Seconds at a stretch for which it counts; an outage of slurmctld does not."""
        if not counts:
            seconds[number] = 0.0
        elif number not in seconds or self._looked_s is None:
            seconds.setdefault(number, 0.0)
        else:
            seconds[number] += min(self._clock.monotonic() - self._looked_s, _MOST_BETWEEN_S)
        return seconds[number]


def _has_begun(row: Reservation, now_s: int) -> bool:
    return row.state.is_promised and row.start_s is not None and row.start_s <= now_s


def _words_of(error: SlurmError) -> str:
    """What Slurm says, without the command and the hints around it."""
    lines = str(error).splitlines()
    said = next((line for line in lines if "rror" in line), lines[-1] if lines else str(error))
    return said.rpartition("Error creating the reservation: ")[2].strip()[:500]
