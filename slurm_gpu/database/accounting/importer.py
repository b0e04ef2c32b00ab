"""Import Slurm's accounting into `run` periodically, then match records to runs."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, func, select

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.accounting.cluster_check import ClusterCheck
from slurm_gpu.database.accounting.derived_columns import first_submits
from slurm_gpu.database.accounting.periods import ImportPeriod, Periods
from slurm_gpu.database.accounting.reconcile import DEFAULT_MIN_COVERAGE, reconcile
from slurm_gpu.database.accounting.resized import Row, in_time
from slurm_gpu.database.accounting.run_placement import RunPlacement
from slurm_gpu.database.accounting.run_row import RunRows
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import (
    IMPORTED,
    AtOnce,
    Job,
    RunKey,
    run_key,
    store_runs,
)
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.maintenance.upkeep import Upkeep
from slurm_gpu.database.storage.batches import batched
from slurm_gpu.database.storage.engine import REFUSED, Database, why_refused
from slurm_gpu.database.storage.prefetch import read_ahead
from slurm_gpu.database.storage.schema import run, run_device, run_host
from slurm_gpu.database.storage.watermarks import get_watermark, set_watermark
from slurm_gpu.errors import OutsideError
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import HOST_CLUSTER

log = logging.getLogger(__name__)

# slurmctld reports to slurmdbd with a delay: several seconds while slurmctld is busy, and longer after
# slurmdbd was unreachable.
OVERLAP_S = 600
WIDE_OVERLAP_S = 86400
WIDE_EVERY_S = 3600.0
_ROWS_PER_TRANSACTION = 2000
# Number of transactions whose rows are read ahead while earlier ones are stored.
_AHEAD = 3
_JOBS_PER_QUERY = 900
_JOBS_PER_QUESTION = 1000
_MAX_UNMATCHED = 10_000
_MAX_WAIT_S = 3600.0
# Retry interval. If retries waited for a whole import interval, the import would be late whenever munged or
# slurmdbd recovers.
_RETRY_S = 10.0
# The import pauses while shipments wait: a late import does no harm, but a node without an answer sends the
# same shipment again.
_REST_PER_WORK, _MOST_REST_S = 4.0, 2.0
_NODES_WITHIN_S = 15.0
# Columns that depend on the nodes in slurmctld. Their old values are kept while slurmctld is unreachable,
# and for ended runs, because the former configuration of nodes is not recorded.
_FROM_NODES = ("allocated_mgpu", "gpu_type", "requested_mgpu")
_ALLOCATION = ("nodes", "tres_allocated")

_job_of = itemgetter("cluster", "job_id")


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """State of the import for /v1/health; times are wall-clock times."""

    last_import_s: float | None = None
    error: str | None = None


class Importer:
    """Imports accounting from `view.client`: `run_once()` in one pass, `run_until()` in the daemon's loop."""

    def __init__(
        self,
        database: Database,
        view: SlurmView,
        clock: Clock,
        cluster: str,
        interval_s: float,
        min_coverage: float = DEFAULT_MIN_COVERAGE,
        upkeep: Upkeep | None = None,
        places: Places | None = None,
        cluster_check: ClusterCheck | None = None,
    ) -> None:
        self._database, self._view, self._clock = database, view, clock
        self._cluster, self.interval_s, self.min_coverage = cluster, interval_s, min_coverage
        self._cluster_check = cluster_check
        self._upkeep, self._places = upkeep, Places() if places is None else places
        self._mark = _mark(cluster)
        self._wide_at: float | None = None
        self._found_empty = False
        self._retries: dict[int, tuple[float, float]] = {}
        self._in_question_up_to = 0
        self.status = ImportStatus()
        self._retry_s = min(interval_s, _RETRY_S)
        self._outage = OutageLog(
            log, f"import: %s; trying again every {self._retry_s:g} s", clock, over="import: works again"
        )
        self._stop = threading.Event()
        self.gives_way: Callable[[], bool] = lambda: False
        """Return whether the import should yield most of the processor to waiting requests."""
        self.stepped_s = clock.monotonic()
        """Value of Clock.monotonic() when the import last made progress."""

    def run_until(self, stop: threading.Event) -> None:
        """Run a pass at each interval until `stop` is set.

        Retry sooner after a failed pass, and log each outage once.
        """
        self._stop = stop
        while not stop.is_set():
            self._step()
            began = self.stepped_s
            try:
                self.run_once()
                self._outage.worked()
                self.status = ImportStatus(self._clock.wall())
                next_s = began + self.interval_s
            except Exception as error:  # the daemon must survive unexpected errors
                self._outage.failed(error)
                reason = str(error) if isinstance(error, OutsideError) else f"{type(error).__name__}: {error}"
                self.status = ImportStatus(self.status.last_import_s, reason)
                next_s = began + self._retry_s
            stop.wait(max(0.0, next_s - self._clock.monotonic()))

    def _step(self) -> None:
        before_s, self.stepped_s = self.stepped_s, self._clock.monotonic()
        if self.gives_way():
            self._stop.wait(min((self.stepped_s - before_s) * _REST_PER_WORK, _MOST_REST_S))
            self.stepped_s = self._clock.monotonic()

    def run_once(self) -> int:
        """Run one pass; return the number of new or changed runs. Raise OutsideError if a service is down.

        Records are matched even if Slurm does not answer.
        """
        try:
            # A site without Slurm has no accounting; the nodes themselves report their runs.
            return 0 if self._cluster.startswith(HOST_CLUSTER) else self._import()
        finally:
            self._step()
            try:
                reconcile(self._database, self.min_coverage, self._step, self._places)
            finally:
                self._step()
                if self._upkeep is not None:
                    self._upkeep.run_once(self._view.nodes(), self._step)

    def _import(self) -> int:
        now_s = int(self._clock.wall())
        made = RunRows(self._view.nodes(_NODES_WITHIN_S) or {})
        with self._database.reading() as connection:
            watermark_s = self._read_until_s(connection)
            placed = RunPlacement(connection, self._places)
        summary = _PassSummary(self._in_question())
        n_changed = 0
        coming = read_ahead(self._fetch(self._since(watermark_s, now_s), now_s, made), _AHEAD)
        with closing(coming):
            for came in coming:
                if isinstance(came, ImportPeriod):
                    # After an interruption, the next pass continues from this time.
                    until_s = now_s if came.until_s is None else came.until_s
                    self._database.write(partial(set_watermark, name=self._mark, value_s=until_s))
                else:
                    summary.add(came)
                    n_changed += self._store(came, placed)
        for ids in batched(self._to_ask_again(summary), _JOBS_PER_QUESTION):
            self._step()  # sacct may return no rows
            for some in batched(self._view.client.accounting(0, job_ids=ids), _ROWS_PER_TRANSACTION):
                n_changed += self._store(made.of(some), placed)
        if self._cluster_check is not None:
            self._cluster_check.check(has_runs=n_changed > 0 or not self._found_empty)
        return n_changed

    def _read_until_s(self, connection: Connection) -> int | None:
        """Return the time up to which accounting was read, or None if all accounting must be read.

        All accounting must be read again if the table `run` has lost its rows.
        """
        until_s = read_until_s(connection, self._cluster)
        of_cluster = select(run.c.run_id).where(run.c.cluster == self._cluster).limit(1)
        was_empty, self._found_empty = self._found_empty, connection.execute(of_cluster).first() is None
        # For a cluster without jobs, one full read confirms that its accounting is still empty.
        if until_s is None or was_empty or not self._found_empty:
            return until_s
        log.warning("import: the table of runs is empty; all of Slurm's accounting is read again")
        return None

    def _fetch(
        self, since_s: int, now_s: int, made: RunRows
    ) -> Generator[list[AccountingRun] | ImportPeriod, None, None]:
        """Yield the rows of each period, followed by the period itself.

        Empty periods are skipped, except the last one.
        """
        periods = Periods(since_s, now_s)
        for period in periods:
            self._step()
            periods.n_rows = 0
            rows = self._view.client.accounting(period.from_s, period.until_s)
            for some in batched(rows, _ROWS_PER_TRANSACTION):
                periods.n_rows += len(some)
                yield made.of(some)
            if periods.n_rows or period.until_s is None:
                yield period

    def _since(self, watermark_s: int | None, now_s: int) -> int:
        if watermark_s is None:
            return 0
        watermark_s = min(watermark_s, now_s)  # the clock may have been ahead when the watermark was set
        now = self._clock.monotonic()
        wide = self._wide_at is None or now >= self._wide_at
        if wide:
            self._wide_at = now + WIDE_EVERY_S
        return max(0, watermark_s - (WIDE_OVERLAP_S if wide else OVERLAP_S))

    def _store(self, rows: Sequence[AccountingRun], placed: RunPlacement) -> int:
        """Store rows; return how many were new or changed.

        Skip a row that the database refuses; otherwise, it would block the other rows.
        """
        self._step()
        try:
            return self._database.write(partial(store_changed_runs, rows=rows, placed=placed))
        except REFUSED as error:
            if len(rows) == 1:
                (row,) = rows
                log.warning("import: job %s was skipped: %s: %r", row.job_id, why_refused(error), row)
                return 0
        half = len(rows) // 2
        return self._store(rows[:half], placed) + self._store(rows[half:], placed)

    def _in_question(self) -> set[int]:
        """Return jobs that have records but no run, and jobs that sacct does not return for any period."""
        job_id = run_device.c.job_id
        without_run = select(job_id).where(*unmatched(self._cluster)).distinct().order_by(job_id)
        with self._database.reading() as connection:
            # If there are too many jobs for one pass, the next pass continues after the last job.
            later = without_run.where(job_id > self._in_question_up_to).limit(_MAX_UNMATCHED)
            found = list(connection.execute(later).scalars())
            if (room := _MAX_UNMATCHED - len(found)) and self._in_question_up_to:
                earlier = without_run.where(job_id <= self._in_question_up_to).limit(room)
                found += connection.execute(earlier).scalars()
        self._in_question_up_to = found[-1] if len(found) == _MAX_UNMATCHED else 0
        return set(found) | self._cancelled_while_held()

    def _to_ask_again(self, summary: _PassSummary) -> list[int]:
        """Return the jobs to query again by ID because this pass has not read their rows.

        The result contains `summary.unanswered` and the jobs whose run has no end in the database. Each
        further query of the same job is sent after a longer interval.
        """
        open_runs = select(run.c.job_id, run.c.submit_s).where(
            run.c.end_s.is_(None), run.c.cluster == self._cluster
        )
        with self._database.reading() as connection:
            found = connection.execute(open_runs)
            wanted = {job_id for job_id, submit_s in found if (job_id, submit_s) not in summary.unfinished}
        wanted |= summary.unanswered
        now = self._clock.monotonic()
        due: list[int] = []
        for job_id in sorted(wanted):
            ask_at, wait_s = self._retries.get(job_id, (now, self.interval_s))
            if ask_at <= now:
                due.append(job_id)
                ask_at, wait_s = now + wait_s, min(2 * wait_s, _MAX_WAIT_S)
            self._retries[job_id] = ask_at, wait_s
        self._retries = {job_id: item for job_id, item in self._retries.items() if job_id in wanted}
        return due

    def _cancelled_while_held(self) -> set[int]:
        """Return jobs that were cancelled before they became eligible; sacct returns these only by ID."""
        queue = self._view.queue()
        if queue is None:
            return set()
        return {
            job_id
            for job_id, job in queue.by_id.items()
            if job.eligible_s is None and job.state == "CANCELLED"
        }


def _mark(cluster: str) -> str:
    return f"accounting:{cluster}"


def read_until_s(connection: Connection, cluster: str) -> int | None:
    """Return the time up to which accounting was read."""
    return get_watermark(connection, _mark(cluster))


def unmatched(cluster: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the records of a cluster that match no run."""
    # coalesce keeps SQLite from using the index on the cluster, because most records have the same cluster.
    return run_device.c.run_id.is_(None), func.coalesce(run_device.c.cluster, "") == cluster


class _PassSummary:
    """The data by which a pass decides which jobs to query again.

    The rows themselves are not kept, since there may be millions of them.
    """

    def __init__(self, in_question: Set[int]) -> None:
        self.unanswered = set(in_question)
        """Jobs in `in_question` for which the pass has not read a row yet."""
        self.unfinished: set[tuple[int, int]] = set()
        """(job ID, submit time) of runs without an end."""

    def add(self, rows: Sequence[AccountingRun]) -> None:
        """Add rows that were read."""
        if self.unanswered:
            self.unanswered.difference_update(row.job_id for row in rows)
        self.unfinished.update((row.job_id, row.submit_s) for row in rows if row.end_s is None)


def store_changed_runs(
    connection: Connection, rows: Sequence[AccountingRun], placed: RunPlacement | None = None
) -> int:
    """Store the rows that are new or differ from the stored ones; return the number of rows stored.

    With `placed`, the derived columns of new runs are stored in the same statement if their job has no
    record. A row of a running job that differs only in elapsed_s is not stored; otherwise, each pass would
    derive the columns of all running jobs again.
    """
    n_of = Counter(row.job for row in rows)
    stored: dict[RunKey, RowMapping] = {}
    for query in _of_jobs(select(run), run, _up_to_the_last(connection, n_of.keys())):
        for old in connection.execute(query).mappings():
            stored[run_key(old)] = old
    # During a first import, no row is stored yet.
    changed = [found for row in rows if (found := _changed(row, stored.get(row.key)))] if stored else rows
    if placed is None:
        store_runs(connection, changed)
    else:
        several = {job for job, n in n_of.items() if n > 1} | set(map(_job_of, stored.values()))
        recorded = _with_records(connection, {row.job for row in changed})
        firsts = _first_submits([row for row in changed if row.job in several], stored.values())
        store_runs(connection, changed, AtOnce(recorded, firsts, placed))
    return len(changed)


def _changed(fresh: AccountingRun, old: Row | None) -> AccountingRun | None:
    """Return the row to store, or None if it equals the stored row."""
    if old is None:
        return fresh
    over = fresh.end_s is not None and all(getattr(fresh, name) == old[name] for name in _ALLOCATION)
    kept = {
        name: old[name]
        for name in _FROM_NODES
        # A stored 0 is not kept: it was not computed from nodes, and Slurm may not count all GPUs there.
        if old[name] and (over or getattr(fresh, name) is None)
    }
    row = fresh._replace(**kept)
    compared = (name for name in IMPORTED if name != "elapsed_s" or row.end_s is not None)
    return row if any(getattr(row, name) != old[name] for name in compared) else None


def _first_submits(changed: Iterable[AccountingRun], stored: Iterable[Row]) -> dict[RunKey, int | None]:
    """Return each run's first submit time, or None unless all stored rows of its job are earlier.

    If a stored row is not earlier, the derived columns of stored rows may change, too.
    """
    before: dict[Job, list[Row]] = defaultdict(list)
    for old in stored:
        before[_job_of(old)].append(old)
    coming: dict[Job, list[Row]] = defaultdict(list)
    for row in changed:
        coming[row.job].append(row._asdict())
    found: dict[RunKey, int | None] = {}
    for job, rows in coming.items():
        known = before.get(job, ())
        if not known or max(map(in_time, known)) < min(map(in_time, rows)):
            in_order = sorted([*known, *rows], key=in_time)
            firsts = first_submits([(one["submit_s"], one["state"]) for one in in_order])
            found.update(zip(map(run_key, in_order), firsts, strict=True))
        else:
            found.update(dict.fromkeys(map(run_key, rows)))
    return found


def _up_to_the_last(connection: Connection, jobs: Set[Job]) -> set[Job]:
    """Return the jobs that may already be stored: those up to the greatest stored job ID.

    Slurm numbers jobs in the order of submission, so most jobs are new.
    """
    last: dict[str, int | None] = {}
    for cluster in {cluster for cluster, _ in jobs}:
        greatest = select(func.max(run.c.job_id)).where(run.c.cluster == cluster)
        last[cluster] = connection.execute(greatest).scalar()
    return {job for job in jobs if (job_id := last[job[0]]) is not None and job[1] <= job_id}


def _with_records(connection: Connection, jobs: Set[Job]) -> set[Job]:
    found: set[Job] = set()
    if not jobs:
        return found
    clusters, ids = {cluster for cluster, _ in jobs}, [job_id for _, job_id in jobs]
    for table in (run_device, run_host):
        # If no job in this range of IDs has a record, as is usual for old jobs, one query is enough.
        nearby = table.c.cluster.in_(clusters), table.c.job_id.between(min(ids), max(ids))
        if connection.execute(select(table.c.job_id).where(*nearby).limit(1)).first() is None:
            continue
        for query in _of_jobs(select(table.c.cluster, table.c.job_id).distinct(), table, jobs):
            found |= {(cluster, job_id) for cluster, job_id in connection.execute(query)}
    return found


def _of_jobs(query: Select[Any], table: Table, jobs: Set[Job]) -> Iterator[Select[Any]]:
    """Yield one query for each batch of jobs.

    MariaDB converts a list of a thousand values into a table, so the batches are smaller.
    """
    ids: dict[str, list[int]] = defaultdict(list)
    for cluster, job_id in jobs:
        ids[cluster].append(job_id)
    for cluster, of_cluster in ids.items():
        for some in batched(of_cluster, _JOBS_PER_QUERY):
            yield query.where(table.c.cluster == cluster, table.c.job_id.in_(some))
