"""Write to the database with statements that can be repeated, reordered, and run by several daemons."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, RowMapping, func, select, true
from sqlalchemy.sql.dml import Insert

from slurm_gpu.database.accounting.derived_columns import DoubleWatch
from slurm_gpu.database.accounting.run_placement import RunPlacement
from slurm_gpu.database.storage.bulk import insert
from slurm_gpu.database.storage.fast_decoder import DecodedRecord
from slurm_gpu.database.storage.schema import device, event, run, run_device, run_host, run_window
from slurm_gpu.database.storage.upsert import Newest, once, upsert
from slurm_gpu.errors import RecordError
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import DeviceFacts, Event, Host, Record, Window

# A job, identified by cluster and job ID.
Job = tuple[str, int]
RUN_KEY = ("cluster", "job_id", "submit_s")
RunKey = tuple[str, int, int]
run_key: Callable[[Mapping[Any, Any]], RunKey] = itemgetter(*RUN_KEY)
DERIVED = (
    "first_submit_s",
    "granted_mgpu",
    "ugpucore",
    "ugpumem",
    "coverage",
    "energy_j",
    "no_process_mgpu_s",
    "server_type",
    "zone",
    "app",
    "app_field",
)
_DERIVED_AT_ONCE = ("first_submit_s", "granted_mgpu", "server_type", "zone", "derive_due")
_DUE = None, None, None, None, True
_OWN = ("run_id", "derive_due", "reported_seq")
IMPORTED = tuple(c.name for c in run.columns if c.name not in (*RUN_KEY, *DERIVED, *_OWN))
# Columns with equal values in all rows of a segment; no other node can write to the segment.
_OWNER = ("cluster", "job_id", "node")
_MATCHING = ("run_id", "match_due")
_OWN_OF_RECORDS = ("row_id", *_MATCHING)
_RECORD_COLUMNS = tuple(
    c.name for c in run_device.columns if c.name not in (*_OWN_OF_RECORDS, "statistics", "timeline")
)
_HOST_COLUMNS = tuple(c.name for c in run_host.columns if c.name not in _MATCHING)
# The columns of `run_device` without the timeline.
RECORD_WITHOUT_TIMELINE = tuple(c for c in run_device.columns if c.name != "timeline")
_RECORDS = Newest(run_device, ("segment", "device"), "seq", _OWNER, ("row_id", "run_id"))
_HOSTS = Newest(run_host, ("segment",), "seq", _OWNER, ("run_id",))
_DEVICES = Newest(device, ("node", "uuid"), "at_s")
# The statement for each dialect is reused, which also reuses the state that SQLAlchemy caches in it.
_RUN_UPSERTS: dict[str, Insert] = {}
_HOST_RUNS = Newest(run, RUN_KEY, "reported_seq", apart=("run_id", *DERIVED))
# Windows are ordered by arrival, because all windows of a segment's first ten minutes begin at its start.
_WINDOWS = Newest(run_window, ("segment", "device"), "at_s", ("node", "job_id"))
# Boot ID of events that slurm-gpudbd itself detects.
OWN_BOOT_ID = "slurm-gpudbd"


@dataclass(frozen=True, slots=True)
class ArrivedWindow:
    """A window, the node that sent it, and the time at which it arrived."""

    window: Window
    node: str
    at_s: int


Watch = Record | DecodedRecord | Host
W = TypeVar("W", bound=Watch)
K = TypeVar("K")
T = TypeVar("T")
log = logging.getLogger(__name__)


def prepare(records: Iterable[Record | DecodedRecord]) -> None:
    """Pack records in the sender's thread, before the transaction that blocks other shipments."""
    for record in records:
        if isinstance(record, DecodedRecord):
            _ = record.row  # computes and caches the row


def store_records(connection: Connection, records: Iterable[Record | DecodedRecord]) -> list[bool]:
    """Store each record unless one with an equal or greater seq is stored for its (segment, device).

    Return, for each record, whether it was stored.
    """
    return _store_newest(connection, _RECORDS, [_record_row(record) for record in records])


def store_hosts(connection: Connection, hosts: Iterable[Host]) -> list[bool]:
    """Store each host record unless one with an equal or greater seq is stored for its segment.

    Return, for each host record, whether it was stored.
    """
    rows = [{**_row(_HOST_COLUMNS, host.to_wire()), "match_due": True} for host in hosts]
    return _store_newest(connection, _HOSTS, rows)


def store_devices(connection: Connection, devices: Iterable[DeviceFacts]) -> list[bool]:
    """Store each item unless equally new or newer facts are stored for its device and node.

    Return, for each item, whether it was stored.
    """
    names = tuple(c.name for c in device.columns)
    return _store_newest(connection, _DEVICES, [_row(names, item.to_wire()) for item in devices])


def nodes_with(connection: Connection, devices: Collection[DeviceFacts]) -> dict[str, set[str]]:
    """Return, by UUID, the nodes whose newest report lists the device."""
    query = select(device.c.uuid, device.c.node, device.c.at_s)
    rows = connection.execute(query.where(device.c.uuid.in_({item.uuid for item in devices}))).all()
    nodes = {node for _, node, _ in rows}
    last = select(device.c.node, func.max(device.c.at_s)).where(device.c.node.in_(nodes))
    newest: dict[str, int] = dict(map(tuple, connection.execute(last.group_by(device.c.node))))
    found: dict[str, set[str]] = {}
    for uuid, node, at_s in rows:
        if at_s == newest[node]:
            found.setdefault(uuid, set()).add(node)
    return found


def store_windows(connection: Connection, windows: Iterable[ArrivedWindow]) -> None:
    """Store each window unless an equally new or newer one is stored for its (segment, device)."""
    rows = [{**item.window.to_wire(), "node": item.node, "at_s": item.at_s} for item in windows]
    _store_newest(connection, _WINDOWS, rows)


def foreign_segments(connection: Connection, watches: Mapping[K, W]) -> dict[K, W]:
    """Return the records or host records whose segment already belongs to another node or job."""
    segments = {watch.segment for watch in watches.values()}
    owners: dict[str, set[tuple[Any, ...]]] = {}
    for table in (run_device, run_host) if segments else ():
        columns = [table.c[name] for name in ("segment", *_OWNER)]
        rows = connection.execute(select(*columns).where(table.c.segment.in_(segments)).distinct())
        for segment, *owner in rows:
            owners.setdefault(segment, set()).add(tuple(owner))

    def foreign(watch: W) -> bool:
        return not owners.get(watch.segment, set()) <= {(watch.cluster, watch.job_id, watch.node)}

    return {key: watch for key, watch in watches.items() if foreign(watch)}


def foreign_windows(connection: Connection, windows: Mapping[K, ArrivedWindow]) -> dict[K, ArrivedWindow]:
    """Return the windows whose segment already belongs to another node or job."""
    if not windows:
        return {}
    segments = {item.window.segment for item in windows.values()}
    columns = run_device.c.segment, run_device.c.node, run_device.c.job_id
    rows = connection.execute(select(*columns).where(run_device.c.segment.in_(segments)).distinct())
    owners = {segment: (owner, job_id) for segment, owner, job_id in rows}

    def foreign(item: ArrivedWindow) -> bool:
        own = item.node, item.window.job_id
        return owners.get(item.window.segment, own) != own

    return {key: item for key, item in windows.items() if foreign(item)}


def store_events(connection: Connection, events: Iterable[Event]) -> None:
    """Store the events whose (node, boot_id, n) is not stored yet."""
    names = tuple(c.name for c in event.columns)
    rows = [_row(names, item.to_wire()) for item in events]
    if rows:
        rows.sort(key=lambda row: (row["node"], row["boot_id"], row["n"]))
        connection.execute(once(connection, event), rows)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Derived columns of new runs without records, stored together with the runs.

    During a first import, this covers nearly all runs.
    """

    recorded: Set[Job]
    """Jobs that have a record."""
    first_submits: Mapping[RunKey, int | None]
    """First submit time by run, for jobs with several runs; None if stored runs must be derived again."""
    placed: RunPlacement

    def derived(self, row: AccountingRun) -> tuple[Any, ...]:
        """Return the values of _DERIVED_AT_ONCE for a row, or _DUE if they must be derived later."""
        first_submit_s = self.first_submits.get(row.key, row.submit_s)
        if first_submit_s is None or row.job in self.recorded:
            return _DUE
        server_type, zone = self.placed.of(row.nodes, row.submit_s, row.start_s)
        return first_submit_s, row.allocated_mgpu, server_type, zone, False


def store_runs(connection: Connection, rows: Sequence[AccountingRun], at_once: AtOnce | None = None) -> None:
    """Insert or overwrite imported columns by (cluster, job_id, submit_s), and mark the runs as due.

    Runs whose derived columns `at_once` provides are not marked.
    """
    if rows:
        dialect = connection.dialect.name
        if dialect not in _RUN_UPSERTS:
            _RUN_UPSERTS[dialect] = upsert(connection, run, RUN_KEY, IMPORTED, {"derive_due": true()})
        values = (row + (_DUE if at_once is None else at_once.derived(row)) for row in rows)
        names = (*AccountingRun._fields, *_DERIVED_AT_ONCE)
        insert(connection, _RUN_UPSERTS[dialect], names, values, many=True)


def store_host_runs(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store the last report (by `reported_seq`) of each run without Slurm, and mark the runs as due."""
    latest = {
        tuple(row[name] for name in RUN_KEY): row for row in sorted(rows, key=lambda r: r["reported_seq"])
    }
    if latest:
        in_order = [{**row, "derive_due": True} for _, row in sorted(latest.items())]
        connection.execute(_HOST_RUNS.statement(connection), in_order)


def double_watch_event(doubled: DoubleWatch) -> Event:
    """Return the event for a double watch; the same segments always lead to the same event."""
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


def device_elsewhere_event(uuid: str, node: str, others: Collection[str], at_s: int) -> Event:
    """Return the event for a device that `node` and `others` report.

    The number of the event depends only on the device and these nodes.
    """
    name = ":".join((uuid, node, *sorted(others))).encode()
    return Event(
        node=node,
        boot_id=OWN_BOOT_ID,
        n=int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1,
        at_s=at_s,
        kind="device_elsewhere",
        device=uuid,
        data={"nodes": sorted(others)},
    )


def read_record(row: RowMapping) -> Record:
    """Convert a row of `run_device` to a record, dropping implausible values that older versions stored."""
    columns = {name: row[name] for name in _RECORD_COLUMNS}
    return Record.from_wire({**row["statistics"], **columns, "timeline": row.get("timeline")}, {})


def read_host(row: RowMapping) -> Host:
    """Convert a row of `run_host` to a host record, dropping implausible values."""
    return Host.from_wire({name: row[name] for name in _HOST_COLUMNS}, {})


def readable(read: Callable[[RowMapping], T], row: RowMapping) -> T | None:
    """Return `read(row)`; if this version rejects a row of an older version, log a warning and return None.

    Such a row must not prevent other rows from being matched and shown.
    """
    try:
        return read(row)
    except RecordError as error:
        log.warning("segment %s of %s is skipped: %s", row["segment"], row["node"], error)
        return None


def _store_newest(connection: Connection, newest: Newest, rows: Sequence[dict[str, Any]]) -> list[bool]:
    """Store the rows that are newer than the stored rows; return, for each row, whether it was stored."""
    if not rows:
        return []

    def key(row: Any) -> tuple[str, ...]:
        return tuple(row[name] for name in newest.key)

    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        newest_row = latest.get(key(row))
        if newest_row is None or row[newest.order] > newest_row[newest.order]:
            latest[key(row)] = row
    columns = [newest.table.c[name] for name in (*newest.key, newest.order)]
    first = newest.table.c[newest.key[0]]
    query = select(*columns).where(first.in_({row[first.name] for row in rows}))
    known = {tuple(name): order for *name, order in connection.execute(query)}
    # All transactions store rows in the same order, which prevents deadlocks between two shipments.
    fresh = [row for name, row in sorted(latest.items()) if row[newest.order] > known.get(name, -1)]
    if fresh:
        names = tuple(fresh[0])
        insert(connection, newest.statement(connection), names, map(itemgetter(*names), fresh))
    stored = set(map(id, fresh))
    return [id(row) in stored for row in rows]


def _row(names: Iterable[str], wire: Mapping[str, Any]) -> dict[str, Any]:
    return {name: wire.get(name) for name in names}


def _record_row(record: Record | DecodedRecord) -> dict[str, Any]:
    if isinstance(record, DecodedRecord):
        return {**record.row, "match_due": True}
    wire = record.to_wire()
    columns = {name: wire.pop(name, None) for name in (*_RECORD_COLUMNS, "timeline")}
    return {**columns, "statistics": wire, "match_due": True}
