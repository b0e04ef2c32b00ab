"""Store several shipments in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import attrgetter

from sqlalchemy import Connection

from slurm_gpu.database.accounting.host_runs import host_run_row
from slurm_gpu.database.accounting.writer import (
    ArrivedWindow,
    device_elsewhere_event,
    foreign_windows,
    nodes_with,
    store_devices,
    store_events,
    store_host_runs,
    store_hosts,
    store_records,
    store_windows,
)
from slurm_gpu.database.ingest.admitted_items import AdmittedItems, not_its, of_all, reject
from slurm_gpu.database.ingest.denial import denials

log = logging.getLogger(__name__)


def store(connection: Connection, some: Sequence[AdmittedItems], cluster: str) -> Sequence[tuple[int, int]]:
    """Store shipments; reject items of foreign segments and of jobs that were never on the node.

    A segment is foreign if it belongs to another job or node. Return the (stored, stale) counts of records
    and host records of each shipment. The call can be repeated.
    """
    for kind in ("records", "hosts"):
        reject(some, kind, denials(connection, cluster, some, of_all(some, attrgetter(kind))))
    windows = {
        (place, index): ArrivedWindow(window, admitted.node, admitted.at_s)
        for place, admitted in enumerate(some)
        for index, window in admitted.windows.items()
    }
    foreign = foreign_windows(connection, windows)
    reject(some, "windows", {key: not_its(item.window, item.node) for key, item in foreign.items()})
    counts = [[0, 0] for _ in some]
    records, hosts = of_all(some, attrgetter("records")), of_all(some, attrgetter("hosts"))
    stored = zip(records, store_records(connection, records.values()), strict=True)
    stored_hosts = zip(hosts, store_hosts(connection, hosts.values()), strict=True)
    for (place, _), is_stored in (*stored, *stored_hosts):
        counts[place][0 if is_stored else 1] += 1
    store_devices(connection, of_all(some, attrgetter("devices")).values())
    _report_duplicates(connection, some)
    store_windows(connection, [item for key, item in windows.items() if key not in foreign])
    store_events(connection, of_all(some, attrgetter("events")).values())
    host_runs = of_all(some, attrgetter("runs")).items()
    store_host_runs(
        connection, [host_run_row(item, some[place].uids.get(item.user)) for (place, _), item in host_runs]
    )
    return [(stored, stale) for stored, stale in counts]


def _report_duplicates(connection: Connection, some: Sequence[AdmittedItems]) -> None:
    """Log and store an event for each GPU that several nodes report.

    The GPU was moved to another node, or a node uses another node's name.
    """
    devices = of_all(some, attrgetter("devices"))
    nodes_of = nodes_with(connection, devices.values()) if devices else {}
    for (place, _), item in devices.items():
        others = nodes_of.get(item.uuid, set()) - {item.node}
        if others and item.node in nodes_of[item.uuid]:
            nodes = ", ".join(sorted(others))
            log.warning("%s reports the device %s, as does %s", item.node, item.uuid, nodes)
            at_s = some[place].at_s
            store_events(connection, [device_elsewhere_event(item.uuid, item.node, others, at_s)])
