"""Writing: each statement is safe to repeat, in any order, from several daemons at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, func, select
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.sql.dml import Insert

from slurm_gpu.database.derive import DoubleWatch
from slurm_gpu.database.schema import event, run, run_device, watermark
from slurm_gpu.records import Event, Record

RUN_KEY = ("cluster", "job_id", "submit_s")
DERIVED = ("first_submit_s", "granted_mgpu", "ugpucore", "ugpumem", "coverage", "energy_j")
IMPORTED = tuple(c.name for c in run.columns if c.name not in (*RUN_KEY, *DERIVED, "run_id", "derive_due"))
_RECORD_KEY = ("segment", "device")
# What stays for as long as a segment lives: no other node can overwrite its records.
_RECORD_OWNER = ("cluster", "job_id", "node")
_RECORD_COLUMNS = tuple(
    c.name for c in run_device.columns if c.name not in ("run_id", "match_due", "statistics")
)
# Events that slurm-gpudbd itself finds out stand beside the nodes' under this boot id.
OWN_BOOT_ID = "slurm-gpudbd"


def store_records(connection: Connection, records: Iterable[Record]) -> tuple[int, int]:
    """Keep each (segment, device) with the greatest seq; returns how many were (stored, stale)."""
    newest: dict[tuple[str, str], Record] = {}
    n_records = 0
    for record in records:
        n_records += 1
        key = record.segment, record.device
        if key not in newest or record.seq > newest[key].seq:
            newest[key] = record
    known = _sequence_numbers(connection, [record.segment for record in newest.values()])
    fresh = [record for key, record in newest.items() if record.seq > known.get(key, -1)]
    if fresh:
        # In one order everywhere, so that two shipments cannot wait for each other.
        fresh.sort(key=lambda record: (record.segment, record.device))
        connection.execute(_keep_newest(connection), [_record_row(record) for record in fresh])
    return len(fresh), n_records - len(fresh)


def foreign_segments(connection: Connection, records: Mapping[int, Record]) -> dict[int, Record]:
    """Those records whose (segment, device) is there already as another node's or another job's."""
    columns = [run_device.c[name] for name in (*_RECORD_KEY, *_RECORD_OWNER)]
    segments = {record.segment for record in records.values()}
    rows = connection.execute(select(*columns).where(run_device.c.segment.in_(segments)))
    owners = {(segment, device): tuple(owner) for segment, device, *owner in rows}

    def foreign(record: Record) -> bool:
        own = tuple(getattr(record, name) for name in _RECORD_OWNER)
        return owners.get((record.segment, record.device), own) != own

    return {index: record for index, record in records.items() if foreign(record)}


def store_events(connection: Connection, events: Iterable[Event]) -> int:
    """Keep each (node, boot_id, n) once; returns how many were given."""
    rows = [
        {
            "node": item.node,
            "boot_id": item.boot_id,
            "n": item.n,
            "at_s": item.at_s,
            "kind": item.kind,
            "device": item.device,
            "job_id": item.job_id,
            "data": dict(item.data),
        }
        for item in events
    ]
    if rows:
        rows.sort(key=lambda row: (row["node"], row["boot_id"], row["n"]))
        connection.execute(_once(connection, event), rows)
    return len(rows)


def store_runs(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert or overwrite imported columns by (cluster, job_id, submit_s), and mark the runs as due."""
    if rows:
        statement = _upsert(connection, run, RUN_KEY, (*IMPORTED, "derive_due"))
        connection.execute(statement, [{**row, "derive_due": True} for row in rows])


def double_watch_event(doubled: DoubleWatch) -> Event:
    """The event that tells of a double watch; the same one however often it is found."""
    kept, dropped = doubled.kept, doubled.dropped
    segments = sorted((kept.segment, dropped.segment))
    name = ":".join((*segments, kept.device)).encode()
    return Event(
        node=kept.node,
        boot_id=OWN_BOOT_ID,
        n=int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1,
        at_s=max(kept.first_s, dropped.first_s),
        kind="double_watch",
        device=kept.device,
        job_id=kept.job_id,
        data={"segments": segments},
    )


def read_record(row: RowMapping) -> Record:
    """The record that a row of `run_device` holds."""
    return Record.from_wire({**row["statistics"], **{name: row[name] for name in _RECORD_COLUMNS}})


def get_watermark(connection: Connection, name: str) -> int | None:
    """How far something has come, None before its first time."""
    return connection.execute(select(watermark.c.value_s).where(watermark.c.name == name)).scalar()


def set_watermark(connection: Connection, name: str, value_s: int) -> None:
    """Remember how far something has come."""
    connection.execute(
        _upsert(connection, watermark, ("name",), ("value_s",)), {"name": name, "value_s": value_s}
    )


def _sequence_numbers(connection: Connection, segments: Sequence[str]) -> dict[tuple[str, str], int]:
    columns = run_device.c.segment, run_device.c.device, run_device.c.seq
    rows = connection.execute(select(*columns).where(run_device.c.segment.in_(segments)))
    return {(segment, device): seq for segment, device, seq in rows}


def _record_row(record: Record) -> dict[str, Any]:
    wire = record.to_wire()
    row = {name: wire.pop(name, None) for name in _RECORD_COLUMNS}
    return {**row, "statistics": wire, "match_due": True}


def _keep_newest(connection: Connection) -> Insert:
    """INSERT, or overwrite where the seq is greater, in one statement; `run_id` stays for now."""
    # seq comes last: MariaDB assigns from left to right, and the condition reads the old one.
    fixed = (*_RECORD_KEY, *_RECORD_OWNER, "run_id", "seq")
    names = [c.name for c in run_device.columns if c.name not in fixed] + ["seq"]
    if connection.dialect.name == "sqlite":
        lite = sqlite.insert(run_device)
        return lite.on_conflict_do_update(
            index_elements=_RECORD_KEY,
            set_={name: lite.excluded[name] for name in names},
            where=_newer(lite.excluded),
        )
    maria = mysql.insert(run_device)
    newer = _newer(maria.inserted)
    return maria.on_duplicate_key_update(
        [(name, func.if_(newer, maria.inserted[name], run_device.c[name])) for name in names]
    )


def _newer(given: Any) -> ColumnElement[bool]:
    same_owner = (given[name] == run_device.c[name] for name in _RECORD_OWNER)
    return and_(given.seq > run_device.c.seq, *same_owner)


def _upsert(connection: Connection, table: Table, key: Sequence[str], names: Sequence[str]) -> Insert:
    if connection.dialect.name == "sqlite":
        lite = sqlite.insert(table)
        return lite.on_conflict_do_update(
            index_elements=key, set_={name: lite.excluded[name] for name in names}
        )
    maria = mysql.insert(table)
    return maria.on_duplicate_key_update({name: maria.inserted[name] for name in names})


def _once(connection: Connection, table: Table) -> Insert:
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    # Not INSERT IGNORE, which would also hide values that do not fit.
    first_key = next(iter(table.primary_key.columns))
    return mysql.insert(table).on_duplicate_key_update({first_key.name: first_key})
