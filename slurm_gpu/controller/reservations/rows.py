"""Read and update the table of reservations in slurm-gpudbd in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_gpu.clock import SystemClock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.wire.answers.reservation import MOST_IDS, MOST_REPORTS, Report, Reservation

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

log = logging.getLogger("slurm-gpuctld")

# The type of a function that sends reports, and then returns the current rows and the rows with the given
# IDs.
Exchange = Callable[[Sequence[Report], Collection[int]], Sequence[Reservation]]


class ReservationTable:
    """The rows as last read, and unsent reports; the table never blocks, even while slurm-gpudbd is down."""

    def __init__(self, exchange: Exchange, background: Background) -> None:
        self._exchange = exchange
        self._rows: Mapping[int, Reservation] | None = None
        self._reports: dict[int, Report] = {}
        self._sent: Mapping[int, Report] = {}
        self._asking = BackgroundTask[Sequence[Reservation]](background)
        self._outage = OutageLog(
            log,
            "reservations could not be updated from slurm-gpudbd: %s; retrying",
            SystemClock(),
            over="reservations are updated from slurm-gpudbd again",
        )

    @property
    def rows(self) -> Mapping[int, Reservation] | None:
        """Rows by ID with unsent reports applied; None before the first answer."""
        if self._rows is None:
            return None
        return {number: _with(row, self._reports.get(number)) for number, row in self._rows.items()}

    def is_reported(self, number: int) -> bool:
        """Return whether all reports about this row were sent."""
        return number not in self._reports

    def report(self, report: Report) -> None:
        """Queue a report, which replaces an unsent report about the same row."""
        before = self._reports.get(report.id)
        if report.nodes is None and before is not None:
            report = replace(report, nodes=before.nodes)
        self._reports[report.id] = report

    def poll(self, ids: Collection[int], *, begin: bool) -> bool:
        """Return whether an answer arrived; with `begin`, start a query unless another one is running."""
        came = self._asking.is_done
        if came:
            self._take_answer()
        if begin and self._asking.is_free:
            self._sent = dict(self._reports)
            reports, wanted = list(self._sent.values()), sorted(ids)
            self._asking.start(lambda: self._exchange(reports, wanted))
        return came

    def _take_answer(self) -> None:
        try:
            rows = self._asking.take()
        except SlurmGpuError as error:
            self._outage.failed(error)
            return
        self._outage.worked()
        self._rows = {row.id: row for row in rows}
        for number, report in self._sent.items():
            if self._reports.get(number) == report:
                del self._reports[number]


def exchanged(
    database: DatabaseClient, reports: Sequence[Report], ids: Collection[int]
) -> Sequence[Reservation]:
    """Send all reports, then read all rows, in batches of the size that slurm-gpudbd accepts."""
    for at in range(0, len(reports), MOST_REPORTS):
        database.send_reservation_reports(reports[at : at + MOST_REPORTS])
    named = list(ids)
    found: dict[int, Reservation] = {}
    for at in range(0, max(1, len(named)), MOST_IDS):
        found |= {row.id: row for row in database.reservations(ids=named[at : at + MOST_IDS])}
    return list(found.values())


def _with(row: Reservation, report: Report | None) -> Reservation:
    """Return a row with a report applied."""
    if report is None or not row.state.is_promised:
        return row
    nodes = row.nodes if report.nodes is None else report.nodes
    row = replace(row, state=report.state, error=report.error, nodes=nodes)
    if row.first_start_s is None:
        row = replace(
            row,
            first_job_id=report.first_job_id,
            first_eligible_s=report.first_eligible_s,
            first_start_s=report.first_start_s,
        )
    return row
