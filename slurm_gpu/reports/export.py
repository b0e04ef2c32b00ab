"""The database as Parquet by month, for DuckDB, Spark and pyarrow: DIR/run/month=2026-10/part-0.parquet.

A run lies in the month (UTC) in which it was submitted, and what was recorded of it lies in the same: neither
ever moves to another. What belongs to no run, or to none yet, lies in month=unmatched, which each export
writes anew. Each file is there whole or not at all, and an export that was killed goes on.
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
from slurm_gpu.wire.fields import MAX_MOMENT_S

_RUNS_AT_ONCE = 900
# Of a row group: as many are held in memory.
_ROWS_AT_ONCE = 20_000
_PROGRESS = "unfinished.json"
# What a killed export wrote within that is not written anew: runs of any month may have changed since.
_FRESH_S = 6 * 3600
# In place of a month: records that belong to no run, or to none yet.
UNMATCHED = "unmatched"
# How slurm-gpudbd keeps books on its rows.
_LEFT_OUT = frozenset({"derive_due", "match_due", "reported_seq", "row_id"})
_TIMELINE = "timeline"


@dataclass(frozen=True, slots=True, order=True)
class ExportMonth:
    """A calendar month of UTC."""

    year: int
    number: int

    @classmethod
    def at(cls, time_s: float) -> ExportMonth:
        """The month in which this moment lies."""
        moment = dt.datetime.fromtimestamp(time_s, dt.UTC)
        return cls(moment.year, moment.month)

    def following(self) -> ExportMonth:
        """The one after it."""
        return ExportMonth(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def begin_s(self) -> int:
        """Its first second."""
        return int(dt.datetime(self.year, self.number, 1, tzinfo=dt.UTC).timestamp())

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"


@dataclass(frozen=True, slots=True)
class Exported:
    """How many rows of each table were written, and of how many months."""

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
    """Write all months that reach into the period; what lies there of others stays.

    One that was killed some hours ago, if it is asked for the same months, goes on with the one that it was
    at. Raises OSError, and DatabaseError when the database is away.
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
        report(f"{month}: {wrote['run']} runs")
    n_rows.update(_export_unmatched(database, out, timelines=timelines))
    n_rows.update(_export_whole(database, out, device))
    n_rows.update(_export_whole(database, out, node_period))
    progress.end()
    return Exported(n_rows, len(months))


@dataclass(frozen=True, slots=True)
class _Written:
    """A month: from when on it was read, and its rows by table."""

    at_s: float
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Progress:
    """Which months an export that has not ended has written."""

    path: Path
    asked: list[Any]

    def done(self, now_s: float) -> dict[str, _Written]:
        """What is fresh, by month; nothing of another export."""
        try:
            told = json.loads(self.path.read_text())
            if told["asked"] != self.asked:
                return {}
            found = {month: _Written(**one) for month, one in told["written"].items()}
            return {month: one for month, one in found.items() if 0 <= now_s - one.at_s < _FRESH_S}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def keep(self, done: Mapping[str, _Written]) -> None:
        """These are written."""
        written = {month: asdict(one) for month, one in done.items()}
        write_whole(self.path, json.dumps({"asked": self.asked, "written": written}))

    def end(self) -> None:
        """All are: the next export begins anew."""
        self.path.unlink(missing_ok=True)


def _months(connection: Connection, since_s: int | None, until_s: int | None) -> list[ExportMonth]:
    """Those that reach into the period and have something: a clock that stood wrong is no thousand months."""
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
    """Records that belong to no run; those that have found theirs since the last export are here no more."""
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
    """A table that is small: what there is, and what it was when."""
    with ExitStack() as stack, database.reading() as connection:
        file = _open(stack, out / f"{table.name}.parquet", table)
        file.add(connection.execute(file.query.order_by(*table.primary_key.columns)).mappings().all())
        file.flush()
    return {table.name: file.n_rows}


def _in_order(
    database: Database, file: _File, keys: Sequence[Column[Any]], these: Sequence[ColumnElement[bool]]
) -> Iterator[Sequence[Mapping[Any, Any]]]:
    """These rows in the order of the keys, some at a time, each time those after the last."""
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
    """A Parquet file of rows of a table, which takes its place once it is whole."""

    table: Table
    columns: Sequence[Column[Any]]
    schema: pa.Schema
    writer: pyarrow.parquet.ParquetWriter
    waiting: list[Mapping[Any, Any]] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    @property
    def query(self) -> Select[Any]:
        """Its columns; JSON as the text that is stored."""
        return select(
            *(
                type_coerce(column, Text).label(column.name) if isinstance(column.type, Json) else column
                for column in self.columns
            )
        )

    @property
    def n_rows(self) -> int:
        """How many were added."""
        return sum(self.counted)

    def add(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Append rows of `query`."""
        self.waiting.extend(rows)
        self.counted.append(len(rows))
        if len(self.waiting) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write all that was added."""
        values = {
            column.name: [_value(column, row[column.name]) for row in self.waiting] for column in self.columns
        }
        self.writer.write_table(pa.table(values, schema=self.schema))
        self.waiting.clear()


def _of_month(stack: ExitStack, out: Path, table: Table, month: str, *, timelines: bool) -> _File:
    left_out = _LEFT_OUT if timelines else _LEFT_OUT | {_TIMELINE}
    return _open(stack, out / table.name / f"month={month}" / "part-0.parquet", table, left_out)


def _open(stack: ExitStack, path: Path, table: Table, left_out: Set[str] = _LEFT_OUT) -> _File:
    """A file that takes the place of `path` when the stack is left without an error."""
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
    """JSON of what is stored packed."""
    if value is None or not isinstance(column.type, PackedColumn):
        return value
    return json.dumps(value, separators=(",", ":"))
