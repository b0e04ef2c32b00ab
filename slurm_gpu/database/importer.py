"""Slurm's accounting into `run`, again and again, then records onto runs."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, select

from slurm_gpu.clock import Clock
from slurm_gpu.database.accounting import run_row
from slurm_gpu.database.engine import REFUSED, Database, why_refused
from slurm_gpu.database.reconcile import DEFAULT_MIN_COVERAGE, reconcile
from slurm_gpu.database.schema import run, run_device
from slurm_gpu.database.slurmview import SlurmView
from slurm_gpu.database.store import IMPORTED, RUN_KEY, get_watermark, set_watermark, store_runs
from slurm_gpu.database.upkeep import Upkeep
from slurm_gpu.errors import OutsideError
from slurm_gpu.records import HOST_CLUSTER
from slurm_gpu.slurm.client import AccountingRun, SlurmNode

log = logging.getLogger(__name__)

# slurmctld tells slurmdbd late: seconds when busy, longer after slurmdbd was away.
OVERLAP_S = 600
WIDE_OVERLAP_S = 86400
WIDE_EVERY_S = 3600.0
_ROWS_PER_TRANSACTION = 500
_JOBS_PER_QUESTION = 1000
_MAX_UNMATCHED = 10_000
_MAX_WAIT_S = 3600.0
_NODES_WITHIN_S = 15.0
# What slurmctld's nodes tell. What they told before stays while it is away, and of runs that ended: these
# held what the nodes had then, and nobody tells how they were configured.
_FROM_NODES = ("allocated_mgpu", "gpu_type")
_ALLOCATION = ("nodes", "tres_allocated")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """How the import fares, for /v1/health; times are wall clock."""

    last_import_s: float | None = None
    error: str | None = None


class Importer:
    """Reads accounting through `view.client`; `run_once()` is one pass, `run_until()` the daemon's loop."""

    def __init__(
        self,
        database: Database,
        view: SlurmView,
        clock: Clock,
        cluster: str,
        interval_s: float,
        min_coverage: float = DEFAULT_MIN_COVERAGE,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._database, self._view, self._clock = database, view, clock
        self._cluster, self.interval_s, self.min_coverage = cluster, interval_s, min_coverage
        self._upkeep = upkeep
        self._mark = f"accounting:{cluster}"
        self._wide_at: float | None = None
        self._patience: dict[int, tuple[float, float]] = {}
        self.status = ImportStatus()
        self.stepped_s = clock.monotonic()
        """When it last got on, by Clock.monotonic()."""

    def run_until(self, stop: threading.Event) -> None:
        """A pass each interval until `stop`; tells of trouble when it begins and when it ends."""
        while not stop.is_set():
            self._step()
            began = self.stepped_s
            try:
                self.run_once()
                if self.status.error is not None:
                    log.info("import: works again")
                self.status = ImportStatus(self._clock.wall())
            except OutsideError as error:
                self._tell(str(error))
            except Exception as error:  # the daemon must outlive what nobody foresaw
                if self.status.error is None:
                    log.exception("import: a pass failed unexpectedly, and is tried again")
                self._tell(f"{type(error).__name__}: {error}")
            stop.wait(max(0.0, began + self.interval_s - self._clock.monotonic()))

    def _step(self) -> None:
        self.stepped_s = self._clock.monotonic()

    def _tell(self, error: str) -> None:
        if self.status.error is None:
            log.warning("import: %s; trying again every %g s", error, self.interval_s)
        self.status = ImportStatus(self.status.last_import_s, error)

    def watermark(self, connection: Connection) -> int | None:
        """Up to when accounting was read."""
        return get_watermark(connection, self._mark)

    def run_once(self) -> int:
        """One pass; returns how many runs were new or changed. Raises OutsideError when something is away.

        Records are matched even when Slurm does not answer.
        """
        try:
            # A site without Slurm has no accounting: its nodes tell their runs themselves.
            return 0 if self._cluster.startswith(HOST_CLUSTER) else self._import()
        finally:
            self._step()
            try:
                reconcile(self._database, self.min_coverage, self._step)
            finally:
                self._step()
                if self._upkeep is not None:
                    self._upkeep.run_once(self._step)

    def _import(self) -> int:
        now_s = int(self._clock.wall())
        client, nodes = self._view.client, self._view.nodes(_NODES_WITHIN_S) or {}
        with self._database.reading() as connection:
            watermark_s = self.watermark(connection)
        seen: set[tuple[int, int]] = set()
        n_changed = self._store(client.accounting(self._since(watermark_s)), nodes, seen)
        for ids in batched(self._to_ask_again(seen), _JOBS_PER_QUESTION):
            self._step()  # sacct may know none of them
            n_changed += self._store(client.accounting(0, job_ids=ids), nodes, seen)
        self._database.write(lambda connection: set_watermark(connection, self._mark, now_s))
        return n_changed

    def _since(self, watermark_s: int | None) -> int:
        if watermark_s is None:
            return 0
        now = self._clock.monotonic()
        wide = self._wide_at is None or now >= self._wide_at
        if wide:
            self._wide_at = now + WIDE_EVERY_S
        return max(0, watermark_s - (WIDE_OVERLAP_S if wide else OVERLAP_S))

    def _store(
        self, rows: Iterable[AccountingRun], nodes: Mapping[str, SlurmNode], seen: set[tuple[int, int]]
    ) -> int:
        n_changed = 0
        for some in batched(rows, _ROWS_PER_TRANSACTION):
            self._step()
            values = [run_row(row, nodes) for row in some]
            seen.update((row["job_id"], row["submit_s"]) for row in values)
            try:
                n_changed += self._database.write(partial(store_changed_runs, rows=values))
            except REFUSED:
                # One row that the database cannot take must not keep out the others.
                n_changed += sum(self._store_one(row) for row in values)
        return n_changed

    def _store_one(self, row: dict[str, Any]) -> int:
        self._step()
        try:
            return self._database.write(partial(store_changed_runs, rows=[row]))
        except REFUSED as error:
            log.warning("import: job %s was skipped: %s: %r", row["job_id"], why_refused(error), row)
            return 0

    def _to_ask_again(self, seen: set[tuple[int, int]]) -> list[int]:
        """Jobs that this pass did not tell of: held open here, with records but no run, or never eligible."""
        open_runs = select(run.c.job_id, run.c.submit_s).where(
            run.c.end_s.is_(None), run.c.cluster == self._cluster
        )
        unmatched = (
            select(run_device.c.job_id)
            .where(run_device.c.run_id.is_(None), run_device.c.cluster == self._cluster)
            .distinct()
            .limit(_MAX_UNMATCHED)
        )
        with self._database.reading() as connection:
            wanted = {
                job_id for job_id, submit_s in connection.execute(open_runs) if (job_id, submit_s) not in seen
            }
            wanted |= set(connection.execute(unmatched).scalars()) - {job_id for job_id, _ in seen}
        wanted |= self._cancelled_while_held() - {job_id for job_id, _ in seen}
        now = self._clock.monotonic()
        due: list[int] = []
        for job_id in sorted(wanted):
            ask_at, wait_s = self._patience.get(job_id, (now, self.interval_s))
            if ask_at <= now:
                due.append(job_id)
                ask_at, wait_s = now + wait_s, min(2 * wait_s, _MAX_WAIT_S)
            self._patience[job_id] = ask_at, wait_s
        self._patience = {job_id: item for job_id, item in self._patience.items() if job_id in wanted}
        return due

    def _cancelled_while_held(self) -> set[int]:
        """Jobs that ended without ever having been eligible: sacct finds these in no period, only by id."""
        queue = self._view.queue()
        if queue is None:
            return set()
        return {
            job_id
            for job_id, job in queue.by_id.items()
            if job.eligible_s is None and job.state == "CANCELLED"
        }


def store_changed_runs(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Store the rows that are new or differ from what is there; returns how many.

    The growing elapsed_s of a run that goes on is no change, or each pass would derive all running jobs anew.
    """
    stored: dict[tuple[Any, ...], RowMapping] = {}
    for cluster in {row["cluster"] for row in rows}:
        ids = {row["job_id"] for row in rows if row["cluster"] == cluster}
        query = select(run).where(run.c.cluster == cluster, run.c.job_id.in_(ids))
        for held in connection.execute(query).mappings():
            stored[tuple(held[name] for name in RUN_KEY)] = held
    changed = []
    for fresh in rows:
        row = fresh
        old = stored.get(tuple(row[name] for name in RUN_KEY))
        if old is not None:
            over = row["end_s"] is not None and all(row[name] == old[name] for name in _ALLOCATION)
            kept = {name: old[name] for name in _FROM_NODES if over and old[name] is not None}
            row = {**row, **{name: old[name] for name in _FROM_NODES if row[name] is None}, **kept}
        if old is None or any(row[name] != old[name] for name in _compared(row)):
            changed.append(row)
    store_runs(connection, changed)
    return len(changed)


def _compared(row: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in IMPORTED if name != "elapsed_s" or row["end_s"] is not None)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of up to `size` items."""
    iterator = iter(items)
    while some := list(itertools.islice(iterator, size)):
        yield some
