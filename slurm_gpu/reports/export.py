"""Export the database by month as Parquet files, such as run/month=2026-10/part-0.parquet.

DuckDB, Spark and pyarrow can read these files. A run and its records are in the month (UTC) in which the run
was submitted. Records that have no run, or are not matched to their run yet, are in month=unmatched, which
each export rewrites. Each file appears only when it is complete, and an export that was killed can be
resumed.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Select,
    Table,
    Text,
    and_,
    func,
    or_,
    select,
    true,
    type_coerce,
)

from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import (
    Json,
    PackedColumn,
    device,
    event,
    node_period,
    run,
    run_device,
    run_host,
)
from slurm_gpu.files.atomic import whole_file, write_whole
from slurm_gpu.plausible import MAX_MOMENT_S
from slurm_gpu.text.units import counted

_RUNS_AT_ONCE = 900
# The number of rows in a row group, all of which are in memory at once.
_ROWS_AT_ONCE = 20_000
_PROGRESS = "unfinished.json"
# A resumed export keeps files up to this age. It rewrites older files, because their runs may have changed.
_FRESH_S = 6 * 3600
# The directory of records that have no run, or are not matched to it yet.
UNMATCHED = "unmatched"
# Internal columns of slurm-gpudbd, which are not exported.
_LEFT_OUT = frozenset({"derive_due", "match_due", "reported_seq", "row_id"})
_TIMELINE = "timeline"


@dataclass(frozen=True, slots=True, order=True)
class ExportMonth:
    """A calendar month in UTC."""

    year: int
    number: int

    @classmethod
    def at(cls, time_s: float) -> ExportMonth:
        """Return the month that contains a time."""
        moment = dt.datetime.fromtimestamp(time_s, dt.UTC)
        return cls(moment.year, moment.month)

    def following(self) -> ExportMonth:
        """Return the next month."""
        return ExportMonth(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def begin_s(self) -> int:
        """Return the first second of the month."""
        return int(dt.datetime(self.year, self.number, 1, tzinfo=dt.UTC).timestamp())

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"


@dataclass(frozen=True, slots=True)
class Exported:
    """The number of written rows by table, and the number of months."""

    rows: Mapping[str, int]
    months: int


def export(
    database: Database,
    out: Path,
    *,
    since_s: int | None = None,
    until_s: int | None = None,
    timelines: bool = False,
    report: Callable[[str], None] = lambda line: None,
    wall: Callable[[], float] = time.time,
) -> Exported:
    """Write all months that overlap the period; files of other months are kept.

    If an export of the same months was killed within the last few hours, it is resumed. Raise OSError if a
    file cannot be written, and DatabaseError if the database is down.
    """
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with database.reading() as connection:
        months = _months(connection, since_s, until_s)
    progress = _Progress(out / _PROGRESS, [*map(str, (*months[:1], *months[-1:])), timelines])
    done = progress.done(wall())
    n_rows: Counter[str] = Counter()
    for month in months:
        if str(month) in done:
            n_rows.update(done[str(month)].rows)
            continue
        at_s = wall()
        wrote = _export_month(database, out, month, timelines=timelines)
        n_rows.update(wrote)
        done[str(month)] = _Written(at_s, wrote)
        progress.keep(done)
        report(f"{month}: {counted(wrote['run'], 'run')}")
    n_rows.update(_export_unmatched(database, out, timelines=timelines))
    n_rows.update(_export_whole(database, out, device))
    n_rows.update(_export_whole(database, out, node_period))
    progress.end()
    return Exported(n_rows, len(months))


@dataclass(frozen=True, slots=True)
class _Written:
    """A written month: the time at which it was read, and its number of rows by table."""

    at_s: float
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Progress:
    """The months that an unfinished export has written."""

    path: Path
    asked: list[Any]

    def done(self, now_s: float) -> dict[str, _Written]:
        """Return the recently written months of an unfinished export with the same arguments."""
        try:
            stored = json.loads(self.path.read_text())
            if stored["asked"] != self.asked:
                return {}
            found = {month: _Written(**one) for month, one in stored["written"].items()}
            return {month: one for month, one in found.items() if 0 <= now_s - one.at_s < _FRESH_S}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def keep(self, done: Mapping[str, _Written]) -> None:
        """Store the written months."""
        written = {month: asdict(one) for month, one in done.items()}
        write_whole(self.path, json.dumps({"asked": self.asked, "written": written}))

    def end(self) -> None:
        """Remove the progress file; the next export then writes all months."""
        self.path.unlink(missing_ok=True)


def _months(connection: Connection, since_s: int | None, until_s: int | None) -> list[ExportMonth]:
    """Return the months of the period that have rows.

    Empty months are skipped, because a row with a wrong time could otherwise add a thousand of them.
    """
    months: list[ExportMonth] = []
    next_s = None if since_s is None else ExportMonth.at(min(max(since_s, 0), MAX_MOMENT_S)).begin_s
    while True:
        firsts = [
            connection.execute(
                select(func.min(at)).where(true() if next_s is None else at >= next_s)
            ).scalar()
            for at in (run.c.submit_s, event.c.at_s)
        ]
        month = min((ExportMonth.at(first_s) for first_s in firsts if first_s is not None), default=None)
        if month is None or (until_s is not None and month.begin_s >= until_s):
            return months
        months.append(month)
        next_s = month.following().begin_s


def _export_month(database: Database, out: Path, month: ExportMonth, *, timelines: bool) -> dict[str, int]:
    begin_s, end_s = month.begin_s, month.following().begin_s
    with ExitStack() as stack:

        def file(table: Table) -> _File:
            return _of_month(stack, out, table, str(month), timelines=timelines)

        runs, hosts, events, devices = file(run), file(run_host), file(event), file(run_device)
        submitted = run.c.submit_s >= begin_s, run.c.submit_s < end_s
        for some in _in_order(database, runs, (run.c.submit_s, run.c.run_id), submitted):
            runs.add(some)
            ids = [row["run_id"] for row in some]
            for recorded in (devices, hosts):
                with database.reading() as connection:
                    of_runs = recorded.query.where(recorded.table.c.run_id.in_(ids))
                    recorded.add(connection.execute(of_runs).mappings().all())
        in_time = event.c.at_s, event.c.node, event.c.boot_id, event.c.n
        for some in _in_order(database, events, in_time, (event.c.at_s >= begin_s, event.c.at_s < end_s)):
            events.add(some)
        files = runs, devices, hosts, events
        for one in files:
            one.flush()
    return {one.table.name: one.n_rows for one in files}


def _export_unmatched(database: Database, out: Path, *, timelines: bool) -> dict[str, int]:
    """Export the records without a run.

    Records that were matched since the last export move to the month of their run.
    """
    with ExitStack() as stack:
        files = []
        for table, keys in ((run_device, (run_device.c.row_id,)), (run_host, (run_host.c.segment,))):
            file = _of_month(stack, out, table, UNMATCHED, timelines=timelines)
            for some in _in_order(database, file, keys, (table.c.run_id.is_(None),)):
                file.add(some)
            file.flush()
            files.append(file)
    return {file.table.name: file.n_rows for file in files}


def _export_whole(database: Database, out: Path, table: Table) -> dict[str, int]:
    """Export a small table as a whole."""
    with ExitStack() as stack, database.reading() as connection:
        file = _open(stack, out / f"{table.name}.parquet", table)
        file.add(connection.execute(file.query.order_by(*table.primary_key.columns)).mappings().all())
        file.flush()
    return {table.name: file.n_rows}


def _in_order(
    database: Database, file: _File, keys: Sequence[Column[Any]], these: Sequence[ColumnElement[bool]]
) -> Iterator[Sequence[Mapping[Any, Any]]]:
    """Yield rows in batches, ordered by the keys; each batch continues after the previous one."""
    last: Sequence[Any] | None = None
    while True:
        where = [] if last is None else [keys[0] >= last[0], _after(keys, last)]
        query = file.query.add_columns(*(key.label(f"key_{n}") for n, key in enumerate(keys)))
        query = query.where(*these, *where).order_by(*keys).limit(_RUNS_AT_ONCE)
        with database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        if not rows:
            return
        yield rows
        last = [rows[-1][f"key_{n}"] for n in range(len(keys))]


def _after(keys: Sequence[Column[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    return or_(
        *(
            and_(*(key == value for key, value in zip(keys[:n], last[:n], strict=True)), keys[n] > last[n])
            for n in range(len(keys))
        )
    )


@dataclass(frozen=True, slots=True)
class _File:
    """Writes rows of a table to a Parquet file, which appears when it is complete."""

    table: Table
    columns: Sequence[Column[Any]]
    schema: pa.Schema
    writer: pyarrow.parquet.ParquetWriter
    waiting: list[Mapping[Any, Any]] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    @property
    def query(self) -> Select[Any]:
        """Return the query for the columns of the file; the query reads JSON columns as text."""
        return select(
            *(
                type_coerce(column, Text).label(column.name) if isinstance(column.type, Json) else column
                for column in self.columns
            )
        )

    @property
    def n_rows(self) -> int:
        """Return the number of added rows."""
        return sum(self.counted)

    def add(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Append rows that `query` has returned."""
        self.waiting.extend(rows)
        self.counted.append(len(rows))
        if len(self.waiting) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write all added rows."""
        values = {
            column.name: [_value(column, row[column.name]) for row in self.waiting] for column in self.columns
        }
        self.writer.write_table(pa.table(values, schema=self.schema))
        self.waiting.clear()


def _of_month(stack: ExitStack, out: Path, table: Table, month: str, *, timelines: bool) -> _File:
    left_out = _LEFT_OUT if timelines else _LEFT_OUT | {_TIMELINE}
    return _open(stack, out / table.name / f"month={month}" / "part-0.parquet", table, left_out)


def _open(stack: ExitStack, path: Path, table: Table, left_out: Set[str] = _LEFT_OUT) -> _File:
    """Return a file that replaces `path` when the stack exits without an error."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    columns = [column for column in table.columns if column.name not in left_out]
    schema = pa.schema([(column.name, _kind(column)) for column in columns])
    unfinished = stack.enter_context(whole_file(path))
    writer = pyarrow.parquet.ParquetWriter(unfinished, schema, compression="zstd")
    stack.callback(writer.close)
    return _File(table, columns, schema, writer)


def _kind(column: Column[Any]) -> pa.DataType:
    if isinstance(column.type, Boolean):
        return pa.bool_()
    if isinstance(column.type, Integer):
        return pa.int64()
    return pa.float64() if isinstance(column.type, Double) else pa.string()


def _value(column: Column[Any], value: Any) -> Any:
    """Return a value for the file; packed data is decoded and returned as JSON."""
    if value is None or not isinstance(column.type, PackedColumn):
        return value
    return json.dumps(value, separators=(",", ":"))
