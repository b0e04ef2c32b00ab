"""Writing: each statement is safe to repeat, in any order, from several daemons at once."""

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

Job = tuple[str, int]
"""Cluster and job id."""
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
# What all rows of a segment have in common for as long as it lives: no other node can write to it.
_OWNER = ("cluster", "job_id", "node")
_MATCHING = ("run_id", "match_due")
_OWN_OF_RECORDS = ("row_id", *_MATCHING)
_RECORD_COLUMNS = tuple(
    c.name for c in run_device.columns if c.name not in (*_OWN_OF_RECORDS, "statistics", "timeline")
)
_HOST_COLUMNS = tuple(c.name for c in run_host.columns if c.name not in _MATCHING)
RECORD_WITHOUT_TIMELINE = tuple(c for c in run_device.columns if c.name != "timeline")
"""The columns of `run_device` for those who read records and not their course."""
_RECORDS = Newest(run_device, ("segment", "device"), "seq", _OWNER, ("row_id", "run_id"))
_HOSTS = Newest(run_host, ("segment",), "seq", _OWNER, ("run_id",))
_DEVICES = Newest(device, ("node", "uuid"), "at_s")
_RUN_UPSERTS: dict[str, Insert] = {}
"""For each dialect the one that was made first: what is known of it stays known."""
_TOLD_RUNS = Newest(run, RUN_KEY, "reported_seq", apart=("run_id", *DERIVED))
# By its arrival: a window begins with its segment for as long as that is younger than ten minutes.
_WINDOWS = Newest(run_window, ("segment", "device"), "at_s", ("node", "job_id"))
# Events that slurm-gpudbd itself finds out stand beside the nodes' under this boot id.
OWN_BOOT_ID = "slurm-gpudbd"


@dataclass(frozen=True, slots=True)
class ArrivedWindow:
    """A window, from which node it came, and when."""

    window: Window
    node: str
    at_s: int


Watch = Record | DecodedRecord | Host
W = TypeVar("W", bound=Watch)
K = TypeVar("K")
T = TypeVar("T")
log = logging.getLogger(__name__)


def prepare(records: Iterable[Record | DecodedRecord]) -> None:
    """Pack what is to be stored: better in the thread of its sender than while all wait for a transaction."""
    for record in records:
        if isinstance(record, DecodedRecord):
            _ = record.row  # which keeps it


def store_records(connection: Connection, records: Iterable[Record | DecodedRecord]) -> list[bool]:
    """Keep each (segment, device) with the greatest seq; returns of each whether it was stored, or stale."""
    return _store_newest(connection, _RECORDS, [_record_row(record) for record in records])


def store_hosts(connection: Connection, hosts: Iterable[Host]) -> list[bool]:
    """Keep each segment with the greatest seq; returns of each whether it was stored, or stale."""
    rows = [{**_row(_HOST_COLUMNS, host.to_wire()), "match_due": True} for host in hosts]
    return _store_newest(connection, _HOSTS, rows)


def store_devices(connection: Connection, devices: Iterable[DeviceFacts]) -> list[bool]:
    """Keep what each node told last of each device; returns of each whether it was stored, or stale."""
    names = tuple(c.name for c in device.columns)
    return _store_newest(connection, _DEVICES, [_row(names, item.to_wire()) for item in devices])


def nodes_with(connection: Connection, devices: Collection[DeviceFacts]) -> dict[str, set[str]]:
    """Of these devices by UUID, all nodes among whose devices, by their newest words, it is."""
    told = select(device.c.uuid, device.c.node, device.c.at_s)
    rows = connection.execute(told.where(device.c.uuid.in_({item.uuid for item in devices}))).all()
    nodes = {node for _, node, _ in rows}
    last = select(device.c.node, func.max(device.c.at_s)).where(device.c.node.in_(nodes))
    newest: dict[str, int] = dict(map(tuple, connection.execute(last.group_by(device.c.node))))
    found: dict[str, set[str]] = {}
    for uuid, node, at_s in rows:
        if at_s == newest[node]:
            found.setdefault(uuid, set()).add(node)
    return found


def store_windows(connection: Connection, windows: Iterable[ArrivedWindow]) -> None:
    """Keep the newest window of each (segment, device)."""
    rows = [{**item.window.to_wire(), "node": item.node, "at_s": item.at_s} for item in windows]
    _store_newest(connection, _WINDOWS, rows)


def foreign_segments(connection: Connection, watches: Mapping[K, W]) -> dict[K, W]:
    """Those records or host records whose segment is there already as another node's or another job's."""
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
    """Those windows whose segment is there as another node's or another job's."""
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
    """Keep each (node, boot_id, n) once."""
    names = tuple(c.name for c in event.columns)
    rows = [_row(names, item.to_wire()) for item in events]
    if rows:
        rows.sort(key=lambda row: (row["node"], row["boot_id"], row["n"]))
        connection.execute(once(connection, event), rows)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What is derived of new runs as they are stored: of jobs without a record all of it is accounting's.

    So it is with nearly all at a first import.
    """

    recorded: Set[Job]
    """Jobs that have a record."""
    first_submits: Mapping[RunKey, int | None]
    """Of jobs with several runs; None where those that are stored may be derived otherwise now."""
    placed: RunPlacement

    def derived(self, row: AccountingRun) -> tuple[Any, ...]:
        """_DERIVED_AT_ONCE of a row: what there is to know, or that it is due."""
        first_submit_s = self.first_submits.get(row.key, row.submit_s)
        if first_submit_s is None or row.job in self.recorded:
            return _DUE
        server_type, zone = self.placed.of(row.nodes, row.submit_s, row.start_s)
        return first_submit_s, row.allocated_mgpu, server_type, zone, False


def store_runs(connection: Connection, rows: Sequence[AccountingRun], at_once: AtOnce | None = None) -> None:
    """Insert or overwrite imported columns by (cluster, job_id, submit_s), and mark the runs as due.

    Not so those that are new and of which everything is known `at_once`.
    """
    if rows:
        dialect = connection.dialect.name
        if dialect not in _RUN_UPSERTS:
            _RUN_UPSERTS[dialect] = upsert(connection, run, RUN_KEY, IMPORTED, {"derive_due": true()})
        values = (row + (_DUE if at_once is None else at_once.derived(row)) for row in rows)
        names = (*AccountingRun._fields, *_DERIVED_AT_ONCE)
        insert(connection, _RUN_UPSERTS[dialect], names, values, many=True)


def store_told_runs(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep what a node without Slurm told last of each run, by `reported_seq`, and mark the runs as due."""
    latest = {
        tuple(row[name] for name in RUN_KEY): row for row in sorted(rows, key=lambda r: r["reported_seq"])
    }
    if latest:
        in_order = [{**row, "derive_due": True} for _, row in sorted(latest.items())]
        connection.execute(_TOLD_RUNS.statement(connection), in_order)


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


def device_elsewhere_event(uuid: str, node: str, others: Collection[str], at_s: int) -> Event:
    """The event that tells that `node` and others tell of one device; the same one as long as they do."""
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
    """Return the record that a row of `run_device` holds, as far as it was read.

    Without values that an older version stored and that are implausible.
    """
    columns = {name: row[name] for name in _RECORD_COLUMNS}
    return Record.from_wire({**row["statistics"], **columns, "timeline": row.get("timeline")}, {})


def read_host(row: RowMapping) -> Host:
    """Return the host record that a row of `run_host` holds, without values that are implausible."""
    return Host.from_wire({name: row[name] for name in _HOST_COLUMNS}, {})


def readable(read: Callable[[RowMapping], T], row: RowMapping) -> T | None:
    """What `read` makes of a row; None, and a warning, of one that an older version took and this refuses.

    One such row must not keep the others from being matched and shown.
    """
    try:
        return read(row)
    except RecordError as error:
        log.warning("what segment %s of %s told is left out: %s", row["segment"], row["node"], error)
        return None


def _store_newest(connection: Connection, newest: Newest, rows: Sequence[dict[str, Any]]) -> list[bool]:
    """Store the rows that are newer than what is there; returns of each whether it was."""
    if not rows:
        return []

    def key(row: Any) -> tuple[str, ...]:
        return tuple(row[name] for name in newest.key)

    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        held = latest.get(key(row))
        if held is None or row[newest.order] > held[newest.order]:
            latest[key(row)] = row
    columns = [newest.table.c[name] for name in (*newest.key, newest.order)]
    first = newest.table.c[newest.key[0]]
    query = select(*columns).where(first.in_({row[first.name] for row in rows}))
    known = {tuple(name): order for *name, order in connection.execute(query)}
    # In one order everywhere, so that two shipments cannot wait for each other.
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
