"""Match due records to runs, then derive the columns of the affected runs.

Each change of the data marks the affected rows as due in the same transaction (`run.derive_due`, `match_due`
of records and host records). A pass therefore touches only changed jobs, and no change is lost in a crash.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    RowMapping,
    Table,
    and_,
    bindparam,
    case,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    update,
)

from slurm_gpu.config.site import Sampling
from slurm_gpu.database.accounting.allocated_time import RunPart
from slurm_gpu.database.accounting.derived_columns import (
    DERIVED_FROM,
    Derived,
    application,
    derive,
    first_submits,
    resolve_double_watches,
)
from slurm_gpu.database.accounting.matching import RecordSpan, RunSpan, assign, node_set
from slurm_gpu.database.accounting.resized import Row, began_s, part_s, runs_of
from slurm_gpu.database.accounting.run_placement import RunPlacement
from slurm_gpu.database.accounting.writer import (
    RECORD_WITHOUT_TIMELINE,
    double_watch_event,
    read_host,
    read_record,
    readable,
    store_events,
)
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.storage.engine import REFUSED, Database, why_refused
from slurm_gpu.database.storage.packed import pack_statistics, unpacker
from slurm_gpu.database.storage.schema import PackedColumn, run, run_device, run_host
from slurm_gpu.wire import Event, Host, Record

log = logging.getLogger(__name__)

DEFAULT_MIN_COVERAGE = Sampling().min_coverage
# Transactions are small, because shipments with records of their jobs wait until a transaction ends.
_JOBS_PER_TRANSACTION = 100
_ROWS_PER_STATEMENT = 500
_NO_DEVICE = ""
_STATISTICS = PackedColumn(pack_statistics, unpacker(DERIVED_FROM))
_COLUMNS = [
    type_coerce(column, _STATISTICS).label(column.name) if column.name == "statistics" else column
    for column in RECORD_WITHOUT_TIMELINE
]
_NOTHING = dict.fromkeys(("app", "app_field", *(item.name for item in fields(Derived))))
# Errors that the values of one job may cause; the error of an unreachable database is not included.
_OF_ONE_JOB = *REFUSED, ArithmeticError, ValueError

Job = tuple[str, int]
T = TypeVar("T")


def reconcile(
    database: Database,
    min_coverage: float = DEFAULT_MIN_COVERAGE,
    stepped: Callable[[], None] = lambda: None,
    places: Places | None = None,
) -> int:
    """Match and derive everything that is due; return the number of jobs.

    `stepped` is called after each batch, since all jobs ever recorded may be due.
    """
    n_jobs = 0
    placed: RunPlacement | None = None
    while True:
        stepped()
        with database.reading() as connection:
            jobs = _due(connection)
            if not jobs:
                return n_jobs
            if placed is None:
                placed = RunPlacement(connection, Places() if places is None else places)
        try:
            database.write(partial(_reconcile_jobs, jobs=jobs, min_coverage=min_coverage, placed=placed))
        except _OF_ONE_JOB:
            # A job whose data causes an error must not block other jobs.
            for job in jobs:
                stepped()
                _reconcile_one(database, job, min_coverage, placed)
        n_jobs += len(jobs)
        if len(jobs) < _JOBS_PER_TRANSACTION:
            return n_jobs


def _reconcile_one(database: Database, job: Job, min_coverage: float, placed: RunPlacement) -> None:
    """Match and derive the rows of one job; if this fails, skip the job until its data changes."""
    try:
        database.write(partial(_reconcile_jobs, jobs=[job], min_coverage=min_coverage, placed=placed))
    except _OF_ONE_JOB as error:
        log.warning("job %d of %s is skipped: %s", job[1], job[0], why_refused(error))
        database.write(partial(_leave_out, job=job))


def _leave_out(connection: Connection, job: Job) -> None:
    connection.execute(update(run).where(_among(run, [job])).values(derive_due=False))
    for table in (run_device, run_host):
        connection.execute(update(table).where(_among(table, [job])).values(match_due=False))


def _reconcile_jobs(
    connection: Connection, jobs: Sequence[Job], min_coverage: float, placed: RunPlacement
) -> None:
    runs: dict[Job, list[RowMapping]] = defaultdict(list)
    for row in connection.execute(select(run).where(_among(run, jobs))).mappings():
        runs[row["cluster"], row["job_id"]].append(row)
    records: dict[Job, list[RowMapping]] = defaultdict(list)
    query = select(*_COLUMNS).where(_among(run_device, jobs))
    for row in connection.execute(query).mappings():
        records[row["cluster"], row["job_id"]].append(row)
    hosts: dict[Job, list[RowMapping]] = defaultdict(list)
    for row in connection.execute(select(run_host).where(_among(run_host, jobs))).mappings():
        hosts[row["cluster"], row["job_id"]].append(row)
    changes = _Changes()
    for job in jobs:
        _reconcile_job(runs[job], records[job], hosts[job], changes, min_coverage, placed)
    changes.write(connection)


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of one transaction, collected to write each kind of change with one statement."""

    placed: list[dict[str, Any]] = field(default_factory=list)
    placed_hosts: list[dict[str, Any]] = field(default_factory=list)
    derived: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def write(self, connection: Connection) -> None:
        _place(connection, run_device, self.placed)
        _place(connection, run_host, self.placed_hosts)
        if self.derived:
            connection.execute(update(run).where(run.c.run_id == bindparam("at_run_id")), self.derived)
        store_events(connection, self.events)


def _place(connection: Connection, table: Table, placed: Sequence[Mapping[str, Any]]) -> None:
    """Store the run IDs of rows and mark the rows as matched, in a few statements.

    Meanwhile, shipments that contain the same records wait for the row locks. A record that has been
    replaced since it was read remains due for the next pass.
    """
    names = [name for name in ("segment", "device", "seq") if name in table.c]
    for start in range(0, len(placed), _ROWS_PER_STATEMENT):
        some = placed[start : start + _ROWS_PER_STATEMENT]
        segments = {row["segment"] for row in some}
        rows = tuple_(*(table.c[name] for name in names)).in_([[row[name] for name in names] for row in some])
        runs: dict[str, set[int | None]] = defaultdict(set)
        for row in some:
            runs[row["segment"]].add(row["run_id"])
        # a segment has one run, except after clock changes
        if any(len(run_ids) > 1 for run_ids in runs.values()):
            for row in some:
                where = [table.c[name] == row[name] for name in names]
                connection.execute(update(table).where(*where).values(run_id=row["run_id"], match_due=False))
            continue
        found = [(segment, run_id) for segment, (run_id,) in runs.items() if run_id is not None]
        whens = [(literal(segment), run_id) for segment, run_id in _in_few_lengths(found)]
        run_id = case(*whens, value=table.c.segment, else_=None) if whens else null()
        # MariaDB uses the index for a condition on single columns, but not for a comparison of row values.
        where = [table.c.segment.in_(segments), rows]
        connection.execute(update(table).where(*where).values(run_id=run_id, match_due=False))


def _in_few_lengths(found: list[T]) -> list[T]:
    """Pad the list with its first item until its length is a power of two.

    Each length requires its own statement. SQLAlchemy caches at least 500 compiled statements, and a
    statement with 500 rows takes 1.8 MiB.
    """
    length = 1 << max(0, len(found) - 1).bit_length()
    return found + found[:1] * (length - len(found))


def _due(connection: Connection) -> list[Job]:
    due_runs = select(run.c.cluster, run.c.job_id).where(run.c.derive_due == true()).distinct()
    due_records, due_hosts = (
        select(table.c.cluster, table.c.job_id).where(table.c.match_due == true()).distinct()
        for table in (run_device, run_host)
    )
    jobs: set[Job] = set()
    for query in (due_records, due_hosts, due_runs):
        room = _JOBS_PER_TRANSACTION - len(jobs)
        jobs |= {(cluster, job_id) for cluster, job_id in connection.execute(query.limit(room))}
    return sorted(jobs)


def _among(table: Table, jobs: Sequence[Job]) -> Any:
    ids: dict[str, list[int]] = defaultdict(list)
    for cluster, job_id in jobs:
        ids[cluster].append(job_id)
    return or_(*(and_(table.c.cluster == name, table.c.job_id.in_(some)) for name, some in ids.items()))


def _reconcile_job(
    runs: Sequence[RowMapping],
    rows: Sequence[RowMapping],
    host_rows: Sequence[RowMapping],
    changes: _Changes,
    min_coverage: float,
    placed: RunPlacement,
) -> None:
    """Match the records of one (cluster, job ID) and derive the columns of its runs."""
    of_rows = runs_of(runs)
    spans = [_run_span(parts) for parts in of_rows]
    # Assign records and host records together; both then match the same runs.
    of_devices = [_record_span(row, row["device"]) for row in rows]
    found = assign(spans, of_devices + [_record_span(row, _NO_DEVICE) for row in host_rows])
    of_run: dict[int, list[Record]] = defaultdict(list)
    for row in rows:
        run_id = found[row["segment"], row["device"]]
        if run_id is not None and (record := readable(read_record, row)) is not None:
            of_run[run_id].append(record)
        if row["match_due"] or row["run_id"] != run_id:
            key = {name: row[name] for name in ("segment", "device", "seq")}
            changes.placed.append({**key, "run_id": run_id})
    hosts_of_run = _place_hosts(found, host_rows, changes)
    in_order = [(row["submit_s"], row["state"]) for parts in of_rows for row in parts]
    firsts = iter(first_submits(in_order))
    for parts in of_rows:
        # The last row of a run contains its derived columns.
        run_id = parts[-1]["run_id"]
        kept, doubled = resolve_double_watches(of_run[run_id])
        changes.events.extend(map(double_watch_event, doubled))
        app, app_field = application(hosts_of_run.get(run_id, ()))
        whole = {"app": app, "app_field": app_field, **asdict(derive_run(parts, kept, min_coverage))}
        for part in parts:
            derived = whole if part is parts[-1] else {**_NOTHING, "granted_mgpu": part["allocated_mgpu"]}
            server_type, zone = placed.of(part["nodes"], part["submit_s"], part["start_s"])
            values = {
                "first_submit_s": next(firsts),
                "server_type": server_type,
                "zone": zone,
                "derive_due": False,
                **derived,
            }
            if any(part[name] != value for name, value in values.items()):
                changes.derived.append({"at_run_id": part["run_id"], **values})


def _place_hosts(
    found: Mapping[tuple[str, str], int | None], rows: Sequence[RowMapping], changes: _Changes
) -> Mapping[int, Sequence[Host]]:
    """Match host records, and return the host records of each run by run ID."""
    of_run: dict[int, list[Host]] = defaultdict(list)
    for row in rows:
        run_id = found[row["segment"], _NO_DEVICE]
        if run_id is not None and (host := readable(read_host, row)) is not None:
            of_run[run_id].append(host)
        if row["match_due"] or row["run_id"] != run_id:
            changes.placed_hosts.append({"segment": row["segment"], "seq": row["seq"], "run_id": run_id})
    return of_run


def derive_run(parts: Sequence[Row], records: Sequence[Record], min_coverage: float) -> Derived:
    """Derive the columns of a run from its rows and from its records without double watches."""
    return derive(records, parts=[_part(row) for row in parts], min_coverage=min_coverage)


def _part(row: Row) -> RunPart:
    return RunPart(
        nodes=node_set(row["nodes"]),
        allocated_mgpu=row["allocated_mgpu"],
        start_s=None if row["start_s"] is None else began_s(row),
        elapsed_s=None if row["end_s"] is None else part_s(row, row["elapsed_s"]),
    )


def _run_span(parts: Sequence[Row]) -> RunSpan:
    first, last = parts[0], parts[-1]
    return RunSpan(
        run_id=last["run_id"],
        restart=last["restart"],
        submit_s=first["submit_s"],
        start_s=first["start_s"],
        end_s=last["end_s"],
        nodes=frozenset[str]().union(*(node_set(row["nodes"]) for row in parts)),
    )


def _record_span(row: RowMapping, device: str) -> RecordSpan:
    names = ("segment", "node", "restart", "first_s", "last_s")
    return RecordSpan(device=device, **{name: row[name] for name in names})
