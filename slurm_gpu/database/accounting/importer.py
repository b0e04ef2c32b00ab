"""Slurm's accounting into `run`, again and again, then records onto runs."""

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

from sqlalchemy import Connection, RowMapping, Select, Table, func, select

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

# slurmctld tells slurmdbd late: seconds when busy, longer after slurmdbd was away.
OVERLAP_S = 600
WIDE_OVERLAP_S = 86400
WIDE_EVERY_S = 3600.0
_ROWS_PER_TRANSACTION = 2000
_AHEAD = 3
"""So many transactions' rows are read while those before them are stored."""
_JOBS_PER_QUERY = 900
_JOBS_PER_QUESTION = 1000
_MAX_UNMATCHED = 10_000
_MAX_WAIT_S = 3600.0
# After a pass that failed: a whole interval would be lost each time that munged or slurmdbd answers again.
_RETRY_S = 10.0
_REST_PER_WORK, _MOST_REST_S = 4.0, 2.0
"""What is imported and matched late harms nobody; a node that has no answer sends the same again."""
_NODES_WITHIN_S = 15.0
# What slurmctld's nodes tell. What they told before stays while it is away, and of runs that ended: these
# held what the nodes had then, and nobody tells how they were configured.
_FROM_NODES = ("allocated_mgpu", "gpu_type", "requested_mgpu")
_ALLOCATION = ("nodes", "tres_allocated")

_job_of = itemgetter("cluster", "job_id")


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
        self._patience: dict[int, tuple[float, float]] = {}
        self._in_question_up_to = 0
        self.status = ImportStatus()
        self._retry_s = min(interval_s, _RETRY_S)
        self._outage = OutageLog(
            log, f"import: %s; trying again every {self._retry_s:g} s", clock, over="import: works again"
        )
        self._stop = threading.Event()
        self.gives_way: Callable[[], bool] = lambda: False
        """Whether so many wait for an answer that most of the processor should be theirs."""
        self.stepped_s = clock.monotonic()
        """When it last got on, by Clock.monotonic()."""

    def run_until(self, stop: threading.Event) -> None:
        """Run a pass each interval, sooner after one that failed, until `stop`; log each outage once."""
        self._stop = stop
        while not stop.is_set():
            self._step()
            began = self.stepped_s
            try:
                self.run_once()
                self._outage.worked()
                self.status = ImportStatus(self._clock.wall())
                next_s = began + self.interval_s
            except Exception as error:  # the daemon must outlive what is not foreseen
                self._outage.failed(error)
                told = str(error) if isinstance(error, OutsideError) else f"{type(error).__name__}: {error}"
                self.status = ImportStatus(self.status.last_import_s, told)
                next_s = began + self._retry_s
            stop.wait(max(0.0, next_s - self._clock.monotonic()))

    def _step(self) -> None:
        before_s, self.stepped_s = self.stepped_s, self._clock.monotonic()
        if self.gives_way():
            self._stop.wait(min((self.stepped_s - before_s) * _REST_PER_WORK, _MOST_REST_S))
            self.stepped_s = self._clock.monotonic()

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
        told = _PassSummary(self._in_question())
        n_changed = 0
        coming = read_ahead(self._fetch(self._since(watermark_s, now_s), now_s, made), _AHEAD)
        with closing(coming):
            for came in coming:
                if isinstance(came, ImportPeriod):
                    # From here on, a pass that is cut off goes on.
                    until_s = now_s if came.until_s is None else came.until_s
                    self._database.write(partial(set_watermark, name=self._mark, value_s=until_s))
                else:
                    told.note(came)
                    n_changed += self._store(came, placed)
        for ids in batched(self._to_ask_again(told), _JOBS_PER_QUESTION):
            self._step()  # sacct may know none of them
            for some in batched(self._view.client.accounting(0, job_ids=ids), _ROWS_PER_TRANSACTION):
                n_changed += self._store(made.of(some), placed)
        if self._cluster_check is not None:
            self._cluster_check.check(has_runs=n_changed > 0 or not self._found_empty)
        return n_changed

    def _read_until_s(self, connection: Connection) -> int | None:
        """Up to when accounting was read; None, once, where what was read is not in `run` any more."""
        until_s = read_until_s(connection, self._cluster)
        of_cluster = select(run.c.run_id).where(run.c.cluster == self._cluster).limit(1)
        was_empty, self._found_empty = self._found_empty, connection.execute(of_cluster).first() is None
        # A cluster without jobs stays empty: reading all of its accounting once shows that.
        if until_s is None or was_empty or not self._found_empty:
            return until_s
        log.warning("import: the table of runs is empty; all of Slurm's accounting is read again")
        return None

    def _fetch(
        self, since_s: int, now_s: int, made: RunRows
    ) -> Generator[list[AccountingRun] | ImportPeriod, None, None]:
        """Rows for `run`; and each period when all its rows have come, if it had any or is the last."""
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
        watermark_s = min(watermark_s, now_s)  # it was set by a clock that was ahead
        now = self._clock.monotonic()
        wide = self._wide_at is None or now >= self._wide_at
        if wide:
            self._wide_at = now + WIDE_EVERY_S
        return max(0, watermark_s - (WIDE_OVERLAP_S if wide else OVERLAP_S))

    def _store(self, rows: Sequence[AccountingRun], placed: RunPlacement) -> int:
        """Returns how many were new or changed; what the database cannot take must not keep out the rest."""
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
        """Jobs of which there are records and no run, or which sacct tells of in no period."""
        job_id = run_device.c.job_id
        unmatched = (
            select(job_id)
            .where(run_device.c.run_id.is_(None), run_device.c.cluster == self._cluster)
            .distinct()
            .order_by(job_id)
        )
        with self._database.reading() as connection:
            # Of more than one pass takes, the next pass takes those that follow.
            later = unmatched.where(job_id > self._in_question_up_to).limit(_MAX_UNMATCHED)
            found = list(connection.execute(later).scalars())
            if (room := _MAX_UNMATCHED - len(found)) and self._in_question_up_to:
                earlier = unmatched.where(job_id <= self._in_question_up_to).limit(room)
                found += connection.execute(earlier).scalars()
        self._in_question_up_to = found[-1] if len(found) == _MAX_UNMATCHED else 0
        return set(found) | self._cancelled_while_held()

    def _to_ask_again(self, told: _PassSummary) -> list[int]:
        """Jobs that this pass did not tell of: those in question, and those that go on by what is here."""
        open_runs = select(run.c.job_id, run.c.submit_s).where(
            run.c.end_s.is_(None), run.c.cluster == self._cluster
        )
        with self._database.reading() as connection:
            found = connection.execute(open_runs)
            wanted = {job_id for job_id, submit_s in found if (job_id, submit_s) not in told.going_on}
        wanted |= told.unanswered
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


def _mark(cluster: str) -> str:
    return f"accounting:{cluster}"


def read_until_s(connection: Connection, cluster: str) -> int | None:
    """Up to when accounting was read."""
    return get_watermark(connection, _mark(cluster))


class _PassSummary:
    """What a pass was told, as far as it matters for what to ask besides: all of it may be millions."""

    def __init__(self, in_question: Set[int]) -> None:
        self.unanswered = set(in_question)
        """Of the jobs in question, those that it was not told of."""
        self.going_on: set[tuple[int, int]] = set()
        """(job id, submission) of runs without an end."""

    def note(self, rows: Sequence[AccountingRun]) -> None:
        """These have come."""
        if self.unanswered:
            self.unanswered.difference_update(row.job_id for row in rows)
        self.going_on.update((row.job_id, row.submit_s) for row in rows if row.end_s is None)


def store_changed_runs(
    connection: Connection, rows: Sequence[AccountingRun], placed: RunPlacement | None = None
) -> int:
    """Store the rows that are new or differ from what is there; returns how many.

    With `placed` what is derived of new runs is stored at once, where nothing was recorded of their job.
    The growing elapsed_s of a run that goes on is no change, or each pass would derive all running jobs anew.
    """
    n_of = Counter(row.job for row in rows)
    stored: dict[RunKey, RowMapping] = {}
    for query in _of_jobs(select(run), run, _up_to_the_last(connection, n_of.keys())):
        for held in connection.execute(query).mappings():
            stored[run_key(held)] = held
    # At a first import nothing is there yet.
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
    """As it is to be stored in place of what is there; None if that is the same."""
    if old is None:
        return fresh
    over = fresh.end_s is not None and all(getattr(fresh, name) == old[name] for name in _ALLOCATION)
    kept = {
        name: old[name]
        for name in _FROM_NODES
        # A 0 that was stored is no report of nodes: it is gone where Slurm does not count all their GPUs.
        if old[name] and (over or getattr(fresh, name) is None)
    }
    row = fresh._replace(**kept)
    told = (name for name in IMPORTED if name != "elapsed_s" or row.end_s is not None)
    return row if any(getattr(row, name) != old[name] for name in told) else None


def _first_submits(changed: Iterable[AccountingRun], stored: Iterable[Row]) -> dict[RunKey, int | None]:
    """The first submit of each of these runs, where those that are stored of its job came before; else None.

    What is stored may be derived otherwise then.
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
    """Those that may be here: Slurm numbers jobs in the order of submission, and most that come are new."""
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
        # Of jobs of years ago there are none, nor of those beside them: so much is known at once.
        beside = table.c.cluster.in_(clusters), table.c.job_id.between(min(ids), max(ids))
        if connection.execute(select(table.c.job_id).where(*beside).limit(1)).first() is None:
            continue
        for query in _of_jobs(select(table.c.cluster, table.c.job_id).distinct(), table, jobs):
            found |= {(cluster, job_id) for cluster, job_id in connection.execute(query)}
    return found


def _of_jobs(query: Select[Any], table: Table, jobs: Set[Job]) -> Iterator[Select[Any]]:
    """The query for all of these jobs, some at a time: MariaDB makes a table of a list of a thousand."""
    ids: dict[str, list[int]] = defaultdict(list)
    for cluster, job_id in jobs:
        ids[cluster].append(job_id)
    for cluster, of_cluster in ids.items():
        for some in batched(of_cluster, _JOBS_PER_QUERY):
            yield query.where(table.c.cluster == cluster, table.c.job_id.in_(some))
