"""Read the details of runs: records, hosts, events, device facts, timelines and windows."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, func, or_, select

from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.accounting.resized import Row
from slurm_gpu.database.accounting.writer import RECORD_WITHOUT_TIMELINE, read_host, read_record, readable
from slurm_gpu.database.storage.schema import device, event, run_device, run_host, run_window
from slurm_gpu.errors import RecordError
from slurm_gpu.wire import DeviceFacts, Event, Host, Record, merge_timelines
from slurm_gpu.wire.answers.codec import from_json
from slurm_gpu.wire.answers.runs import DeviceTimeline, NodeReport, NodeWindow

log = logging.getLogger(__name__)

MAX_EVENTS = 1000
_OF_A_WINDOW = tuple(f.name for f in fields(NodeWindow))
_CONCERNING_ALL = ("intruder", "job_mismatch")
# The start and end of a run as reported by hooks may differ from Slurm's by this much.
_SLACK_S = 300


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of one run in addition to its row."""

    records: Sequence[Record]
    hosts: Sequence[Host]
    events: Sequence[Event]
    facts: Mapping[str, DeviceFacts]


def details(connection: Connection, rows: Sequence[Row]) -> tuple[dict[int, Detail], int]:
    """Return the details of these rows of `run` by run_id, and the number of omitted events."""
    run_ids = [row["run_id"] for row in rows]
    records = _records(connection, run_ids)
    hosts: dict[int, list[Host]] = defaultdict(list)
    query = select(run_host).where(run_host.c.run_id.in_(run_ids))
    for row in connection.execute(query.order_by(run_host.c.node, run_host.c.first_s)).mappings():
        if (host := readable(read_host, row)) is not None:
            hosts[row["run_id"]].append(host)
    places = {(record.node, record.device) for some in records.values() for record in some}
    facts = _facts(connection, places)
    events, events_left_out = _events(connection, rows, records)
    found = {
        run_id: Detail(
            records[run_id],
            hosts[run_id],
            events[run_id],
            {
                record.device: facts[record.node, record.device]
                for record in records[run_id]
                if (record.node, record.device) in facts
            },
        )
        for run_id in run_ids
    }
    return found, events_left_out


def _records(
    connection: Connection, run_ids: Sequence[int], *, with_timeline: bool = False
) -> dict[int, list[Record]]:
    columns = run_device.columns if with_timeline else RECORD_WITHOUT_TIMELINE
    order = run_device.c.node, run_device.c.device, run_device.c.first_s, run_device.c.segment
    query = select(*columns).where(run_device.c.run_id.in_(run_ids)).order_by(*order)
    records: dict[int, list[Record]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        if (record := readable(read_record, row)) is not None:
            records[row["run_id"]].append(record)
    return records


def _facts(connection: Connection, places: Collection[tuple[str, str]]) -> dict[tuple[str, str], DeviceFacts]:
    """Return device facts by (node, UUID), since a UUID may have different facts on another node."""
    nodes, uuids = {node for node, _ in places}, {uuid for _, uuid in places}
    query = select(device).where(device.c.node.in_(nodes), device.c.uuid.in_(uuids))
    rows = connection.execute(query).mappings()
    return {(row["node"], row["uuid"]): DeviceFacts.from_wire(dict(row), {}) for row in rows}


def _events(
    connection: Connection, rows: Sequence[Row], records: Mapping[int, Sequence[Record]]
) -> tuple[dict[int, list[Event]], int]:
    """Return, by run_id, the events of the run's job, and of its devices while they were allocated to it.

    Device events of other jobs are excluded, except for the kinds in _CONCERNING_ALL, which concern all jobs
    that share a GPU. Return at most MAX_EVENTS job events and MAX_EVENTS device events, and the number of
    omitted events.
    """
    found: dict[int, list[Event]] = defaultdict(list)
    by_job: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_job[row["job_id"]].append(row)
    places = {row["run_id"]: node_set(row["nodes"]) for row in rows}
    # Select only the job's own nodes; otherwise, events of other nodes could use up the limit.
    of_jobs = and_(event.c.job_id.in_(by_job), event.c.node.in_(frozenset().union(*places.values())))
    of_each, left_out = _bounded_events(connection, of_jobs)
    for item in of_each:
        for row in by_job[item["job_id"]]:
            # A machine without Slurm assigns its own job IDs, so the ID alone does not identify the job of an
            # event.
            here = item["node"] in places[row["run_id"]] and _during(row, item["at_s"])
            if here and (parsed := _read_event(item)) is not None:
                found[row["run_id"]].append(parsed)
    watches = [(run_id, record) for run_id, some in records.items() for record in some]
    if not watches:
        return found, left_out
    of_devices = and_(
        or_(event.c.job_id.is_(None), event.c.kind.in_(_CONCERNING_ALL)),
        event.c.device.in_({record.device for _, record in watches}),
        event.c.node.in_({record.node for _, record in watches}),
        event.c.at_s >= min(record.first_s for _, record in watches),
        event.c.at_s <= max(record.last_s for _, record in watches),
    )
    of_each, more_left_out = _bounded_events(connection, of_devices)
    for item in of_each:
        runs = {
            run_id
            for run_id, record in watches
            if record.job_id != item["job_id"]  # events of the job itself were added above
            and (record.node, record.device) == (item["node"], item["device"])
            and record.first_s <= item["at_s"] <= record.last_s
        }
        if runs and (parsed := _read_event(item)) is not None:
            for run_id in runs:
                found[run_id].append(parsed)
    for some in found.values():
        some.sort(key=lambda item: (item.at_s, item.node, item.n))
    return found, left_out + more_left_out


def _bounded_events(connection: Connection, where: ColumnElement[bool]) -> tuple[Sequence[RowMapping], int]:
    """Return at most MAX_EVENTS events, oldest first, and the number of omitted events.

    The first and last events of each job, device and kind are preferred; otherwise, a thousand events of one
    kind could displace events of another kind.
    """
    of_kind = event.c.job_id, event.c.device, event.c.kind
    keys = event.c.node, event.c.boot_id, event.c.n
    nth = func.row_number().over(partition_by=of_kind, order_by=(event.c.at_s, *keys))
    from_last = func.row_number().over(
        partition_by=of_kind, order_by=(event.c.at_s.desc(), *(key.desc() for key in keys))
    )
    ranks = select(*keys, nth.label("nth"), from_last.label("from_last"), func.count().over().label("total"))
    ranked = ranks.where(where).subquery()
    of_end = case((ranked.c.nth < ranked.c.from_last, ranked.c.nth), else_=ranked.c.from_last)
    same = and_(*(ranked.c[key.name] == key for key in keys))
    query = select(event, ranked.c.total).join(ranked, same).order_by(of_end, event.c.at_s, *keys)
    found = connection.execute(query.limit(MAX_EVENTS)).mappings().all()
    kept = sorted(found, key=lambda row: (row["at_s"], row["n"]))
    return kept, found[0]["total"] - len(found) if found else 0


def _read_event(row: RowMapping) -> Event | None:
    """Return an event; if this version rejects a row of an older version, log a warning and return None."""
    try:
        return Event.from_wire({column.name: row[column.name] for column in event.columns}, {})
    except RecordError as error:
        log.warning("event %d of %s is skipped: %s", row["n"], row["node"], error)
        return None


def _during(row: Row, at_s: float) -> bool:
    began = row["submit_s"] if row["start_s"] is None else row["start_s"]
    return began - _SLACK_S <= at_s and (row["end_s"] is None or at_s <= row["end_s"] + _SLACK_S)


def timelines(connection: Connection, run_ids: Sequence[int]) -> dict[int, list[DeviceTimeline]]:
    """Return the merged timelines of the devices of each run; a dropped timeline is None."""
    found: dict[int, list[DeviceTimeline]] = {run_id: [] for run_id in run_ids}
    for run_id, records in _records(connection, run_ids, with_timeline=True).items():
        kept, _ = resolve_double_watches(records)
        places: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in kept:
            places[record.node, record.device].append(record)
        for (node, uuid), parts in sorted(places.items()):
            spans = [(part.first_s, part.last_s) for part in parts]
            merged = merge_timelines((part.timeline for part in parts), spans)
            found[run_id].append(DeviceTimeline(node=node, device=uuid, timeline=merged))
    return found


def windows(connection: Connection, rows: Sequence[Row]) -> list[NodeWindow]:
    """Return the newest window of each segment and device of the runs in these rows of `run`.

    Windows are selected by job, node and time, not by segment, since a window may arrive long before the
    first record of its segment.
    """
    places = {row["run_id"]: node_set(row["nodes"]) for row in rows}
    query = select(run_window).where(run_window.c.job_id.in_({row["job_id"] for row in rows}))
    order = run_window.c.node, run_window.c.device, run_window.c.start_s
    return [
        from_json(NodeWindow, {name: found[name] for name in _OF_A_WINDOW}).plausible({})
        for found in connection.execute(query.order_by(*order)).mappings()
        if any(
            row["job_id"] == found["job_id"]
            and found["node"] in places[row["run_id"]]
            and _during(row, found["start_s"])
            for row in rows
        )
    ]


def nodes_without_window(row: Row, there: Sequence[NodeWindow]) -> set[str]:
    """Return the nodes of a run that have no window in `there`."""
    return set(node_set(row["nodes"])) - {item.node for item in there if item.job_id == row["job_id"]}


def node_reports(
    connection: Connection, arrivals: Mapping[str, tuple[float, str | None]]
) -> list[NodeReport]:
    """Return all nodes that reported devices or are in `arrivals`, with their devices.

    `arrivals` contains the time and version of the last shipment by node.
    """
    newest = select(device.c.node, func.max(device.c.at_s).label("at_s")).group_by(device.c.node).subquery()
    same = and_(device.c.node == newest.c.node, device.c.at_s == newest.c.at_s)
    query = select(device).join(newest, same).order_by(device.c.node, device.c.index, device.c.uuid)
    devices: dict[str, list[DeviceFacts]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        devices[row["node"]].append(DeviceFacts.from_wire(dict(row), {}))
    return [
        NodeReport(
            node=node,
            last_seen_s=arrivals[node][0] if node in arrivals else None,
            version=arrivals[node][1] if node in arrivals else None,
            devices=tuple(devices.get(node, ())),
        )
        for node in sorted(devices.keys() | arrivals.keys())
    ]
