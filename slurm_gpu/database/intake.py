"""What of a shipment counts, and what its node is told that it cannot know itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from slurm_gpu import __version__
from slurm_gpu.clock import Clock
from slurm_gpu.database.ended import RunEnds, ended, run_ends
from slurm_gpu.database.engine import Database
from slurm_gpu.database.groupcommit import GroupCommit
from slurm_gpu.database.hostruns import host_run_row
from slurm_gpu.database.importer import batched
from slurm_gpu.database.match import node_set
from slurm_gpu.database.nodememory import AT_ONCE_ITEMS, ITEMS_PER_S, Allowances, LiveBoard, Wants
from slurm_gpu.database.quick import QuickRecord
from slurm_gpu.database.resized import began_s
from slurm_gpu.database.schema import run
from slurm_gpu.database.shipment import KINDS, Rejected, Shipment, ShipmentError
from slurm_gpu.database.slurmview import Queue, SlurmView
from slurm_gpu.database.store import (
    ArrivedWindow,
    W,
    Watch,
    device_elsewhere_event,
    foreign_segments,
    foreign_windows,
    nodes_with,
    store_devices,
    store_events,
    store_hosts,
    store_records,
    store_told_runs,
    store_windows,
)
from slurm_gpu.database.unknown import UnknownLog
from slurm_gpu.records import WIRE_RANGE, DeviceFacts, Event, Host, HostRun, Live, Record, Window
from slurm_gpu.slurm.client import QueuedJob, SlurmNode

log = logging.getLogger(__name__)

# Accounting knows all of a job's runs only some time after the fact, and clocks differ.
_DENIAL_MARGIN_S = 300
_RUNS_PER_QUERY = 500
# Of a device the newest word counts: one from the future would silence all that follow. An event from there
# would be kept for ever.
_AHEAD_S = 86400

T = TypeVar("T")
_Key = tuple[int, int]
"""Of an item among several shipments: which of them, and its index there."""


class Intake:
    """Decides what of a shipment counts, stores it, and tells the node what it cannot know itself."""

    def __init__(
        self,
        database: Database,
        view: SlurmView,
        cluster: str,
        clock: Clock,
        board: LiveBoard | None = None,
        wants: Wants | None = None,
    ) -> None:
        self._database, self._view, self._cluster, self._clock = database, view, cluster, clock
        self._board = LiveBoard(clock) if board is None else board
        self._wants = Wants(clock) if wants is None else wants
        self._allowances = Allowances(clock)
        self._commits = GroupCommit(self._store_together, _Goods.segments)
        self._unknown = UnknownLog()

    def take(self, shipment: Shipment, address: str | None) -> dict[str, Any]:
        """Store and answer; `address` is the sender's, None over the Unix socket of this host.

        The answer comes after the commit. Raises DatabaseError when nothing could be stored, SlurmError when
        only Slurm could tell whether the sender may say this, and it is away, and ShipmentError (429) when
        the sender has sent more than its allowance: it tries again.
        """
        # Not by the node's name: whoever sends may write any there, another's too.
        sender = shipment.node if address is None else _plain(address)
        if (wait_s := self._allowances.wait_s(sender)) > 0:
            who = f"{shipment.node} from {address or 'this host'}"
            why = f"{who} has sent more than {AT_ONCE_ITEMS} items, and {ITEMS_PER_S:g} a second"
            log.warning("%s; it has to wait for %.0f s", why, wait_s)
            raise ShipmentError(429, f"{why}; it has to wait", math.ceil(wait_s))
        queue = self._view.queue()
        goods = self._admitted(shipment, address, queue)
        stored, stale = 0, 0
        if goods.n_to_store:
            stored, stale = self._commits.do(goods)
            self._allowances.spend(sender, goods.n_to_store)
        if goods.live is not None:
            self._board.put(shipment.node, goods.live)
        for window in goods.windows.values():
            self._wants.arrived(shipment.node, window.job_id)
        if goods.rejected:
            _warn(shipment.node, address, goods.rejected)
        if shipment.unknown:
            self._unknown.tell(shipment.node, shipment.version, shipment.unknown)
        # A machine without Slurm counts jobs by itself.
        is_slurms = shipment.node in (self._view.nodes() or {})
        open_jobs = shipment.open_jobs if is_slurms else ()
        over = ended(shipment.node, open_jobs, queue, self._clock.wall(), self._run_ends)
        return {
            "stored": stored,
            "stale": stale,
            **{_rejection_key(kind): [] for kind in KINDS},
            **_by_kind(goods.rejected),
            "want": self._wants.of(shipment.node),
            "jobs": self._jobs(shipment.node, queue),
            "ended": {str(job_id): item.to_json() for job_id, item in over.items()},
            "ignored": shipment.unknown,
            "version": __version__,
            "wire": list(WIRE_RANGE),
        }

    def may_speak(self, node: str, address: str | None) -> bool:
        """Whether what comes from `address` is the word of `node`; raises SlurmError as `take` does."""
        return self._foreign(node, address=address) is None

    def _admitted(self, shipment: Shipment, address: str | None, queue: Queue | None) -> _Goods:
        """What this sender may say; the rest is rejected."""
        foreign = cache(partial(self._foreign, address=address))
        rejected, at_s = list(shipment.rejected), int(self._clock.wall())
        goods = _Goods(node=shipment.node, at_s=at_s, queue=queue, rejected=rejected)

        def admit(kind: str, items: Mapping[int, T], node_of: Callable[[T], str], into: dict[int, T]) -> None:
            for index, item in items.items():
                why = foreign(node_of(item))
                if why is None:
                    into[index] = item
                else:
                    goods.rejected.append(Rejected(index, why, kind))

        admit("records", shipment.records, attrgetter("node"), goods.records)
        admit("hosts", shipment.hosts, attrgetter("node"), goods.hosts)
        admit("devices", shipment.devices, attrgetter("node"), goods.devices)
        admit("events", shipment.events, attrgetter("node"), goods.events)
        admit("runs", shipment.runs, attrgetter("node"), goods.runs)
        admit("windows", shipment.windows, lambda _: shipment.node, goods.windows)
        live = {} if shipment.live is None else {0: shipment.live}
        admitted_live: dict[int, Live] = {}
        admit("live", live, lambda _: shipment.node, admitted_live)
        goods.live = admitted_live.get(0)
        slurms = self._view.nodes() or {}
        invented = {index: _not_told(told) for index, told in goods.runs.items() if told.node in slurms}
        goods.reject("runs", invented)
        goods.reject("devices", _from_the_future(goods.devices, goods.at_s))
        goods.reject("events", _from_the_future(goods.events, goods.at_s))
        return goods

    def _store_together(self, some: Sequence[_Goods]) -> Sequence[tuple[int, int]]:
        """Of each, how many records and host records were (stored, stale), once they are committed."""
        return self._database.write(partial(self._store, some))

    def _store(self, some: Sequence[_Goods], connection: Connection) -> Sequence[tuple[int, int]]:
        """In one transaction, which may be run again."""
        _reject(some, "records", self._denials(connection, some, _of_all(some, attrgetter("records"))))
        _reject(some, "hosts", self._denials(connection, some, _of_all(some, attrgetter("hosts"))))
        windows = {
            (place, index): ArrivedWindow(window, goods.node, goods.at_s)
            for place, goods in enumerate(some)
            for index, window in goods.windows.items()
        }
        foreign = foreign_windows(connection, windows)
        _reject(some, "windows", {key: _not_its(item.window, item.node) for key, item in foreign.items()})
        counts = [[0, 0] for _ in some]
        records, hosts = _of_all(some, attrgetter("records")), _of_all(some, attrgetter("hosts"))
        stored = zip(records, store_records(connection, records.values()), strict=True)
        stored_hosts = zip(hosts, store_hosts(connection, hosts.values()), strict=True)
        for (place, _), is_stored in (*stored, *stored_hosts):
            counts[place][0 if is_stored else 1] += 1
        store_devices(connection, _of_all(some, attrgetter("devices")).values())
        self._tell_of_doubles(connection, some)
        store_windows(connection, [item for key, item in windows.items() if key not in foreign])
        store_events(connection, _of_all(some, attrgetter("events")).values())
        told_runs = _of_all(some, attrgetter("runs")).values()
        store_told_runs(connection, list(map(host_run_row, told_runs)))
        return [(stored, stale) for stored, stale in counts]

    def _tell_of_doubles(self, connection: Connection, some: Sequence[_Goods]) -> None:
        """A GPU that was moved, before its old node has looked again, or a node that is not what it says."""
        devices = _of_all(some, attrgetter("devices"))
        nodes_of = nodes_with(connection, devices.values()) if devices else {}
        for (place, _), item in devices.items():
            others = nodes_of.get(item.uuid, set()) - {item.node}
            if others and item.node in nodes_of[item.uuid]:
                told = ", ".join(sorted(others))
                log.warning("%s tells of the device %s, as does %s", item.node, item.uuid, told)
                at_s = some[place].at_s
                store_events(connection, [device_elsewhere_event(item.uuid, item.node, others, at_s)])

    def _run_ends(self, job_ids: Sequence[int]) -> RunEnds:
        with self._database.reading() as connection:
            return run_ends(connection, self._cluster, job_ids)

    def _foreign(self, node: str, *, address: str | None) -> str | None:
        """Why this sender may not speak for `node`; None where it may, or where Slurm cannot tell."""
        if address is None:
            return None
        may, addresses = self._view.may_speak(node, _plain(address))
        if may:
            return None
        if not addresses:
            return f"{node} is no node of this cluster"
        return f"{address} is not an address of {node}, which has {', '.join(sorted(addresses))}"

    def _denials(
        self, connection: Connection, some: Sequence[_Goods], records: Mapping[_Key, W]
    ) -> dict[_Key, str]:
        """Those of jobs that Slurm says were never on the record's node, and of others' segments; and why.

        Doubt counts for the record: a requeued job's next run may be on any node before accounting tells.
        """
        foreign = foreign_segments(connection, records)
        denied = {key: _not_its(record, record.node) for key, record in foreign.items()}
        jobs: dict[_Key, QueuedJob | None] = {}
        for key, record in records.items():
            queue = some[key[0]].queue
            job = None if queue is None else queue.by_id.get(record.job_id)
            if record.cluster == self._cluster and not (job is not None and record.node in job.nodes):
                jobs[key] = job
        runs: dict[int, list[_Whereabouts]] = {}
        columns = run.c.job_id, run.c.restart, run.c.submit_s, run.c.start_s, run.c.end_s, run.c.nodes
        for ids in batched({records[key].job_id for key in jobs}, _RUNS_PER_QUERY):
            query = select(*columns).where(run.c.cluster == self._cluster, run.c.job_id.in_(ids))
            for row in connection.execute(query).mappings():
                start_s = None if row["start_s"] is None else began_s(row)
                place = _Whereabouts(row["restart"], start_s, row["end_s"], node_set(row["nodes"]))
                runs.setdefault(row["job_id"], []).append(place)
        for key, job in jobs.items():
            record = records[key]
            if _denied(record, runs.get(record.job_id, ()), job):
                denied[key] = f"job {record.job_id} was never on {record.node}, says Slurm"
        return denied

    def _jobs(self, node: str, queue: Queue | None) -> dict[str, Any]:
        if queue is None:
            return {}
        slurm_node = (self._view.nodes() or {}).get(node)
        # Where slurmctld does not answer, what it said last may be hours old.
        age_s = round(max(0.0, self._clock.wall() - queue.as_of_s), 1)
        return {
            str(job.job_id): {**job_facts(job, node, slurm_node), "age_s": age_s}
            for job in queue.by_node.get(node, ())
        }


def job_facts(job: QueuedJob, node: str, slurm_node: SlurmNode | None) -> dict[str, Any]:
    """What hooks cannot know of a job on `node`; docs/api.md lists the keys.

    `granted_mgpu` is per device: 1000 for a whole GPU, the job's part of one for shards, None for unknown.
    """
    shards = job.tres_allocated.get("gres/shard")
    return {
        "array_job_id": job.array_job_id,
        "array_task": job.array_task,
        "het_job_id": job.het_job_id,
        "restart": job.restarts,
        "state": job.state,
        "in_prolog": job.reason == "Prolog",
        "uid": job.uid,
        "start_s": job.start_s,
        "shards": None if shards is None else round(shards / _n_nodes(job)),
        "granted_mgpu": _granted_mgpu(job, node, None if slurm_node is None else slurm_node.shards_per_gpu),
        "gpu_index": {name: list(index) for name, index in job.gpu_index.get(node, {}).items()},
    }


def _granted_mgpu(job: QueuedJob, node: str, shards_per_gpu: int | None) -> int | None:
    """Of each device that it holds there; None where Slurm does not tell how its shards are shared out."""
    shards = round(job.tres_allocated.get("gres/shard", 0))
    if not shards:
        return 1000
    n_nodes, n_gpus = _n_nodes(job), len(job.gpu_index.get(node, {}).get("shard", ()))
    if not shards_per_gpu or shards % n_nodes or job.tres_allocated.get("gres/gpu"):
        return None
    on_node = shards // n_nodes
    if on_node == shards_per_gpu * max(1, n_gpus):
        return 1000
    return None if n_gpus > 1 or on_node > shards_per_gpu else round(on_node * 1000 / shards_per_gpu)


def _n_nodes(job: QueuedJob) -> int:
    """How many its allocation has; a job that is completing shows only those that it has yet to leave."""
    return max(1, round(job.tres_allocated.get("node", len(job.nodes))))


@dataclass(slots=True, kw_only=True)
class _Goods:
    """What of a shipment is still to be stored, and what is not."""

    node: str
    at_s: int
    queue: Queue | None
    rejected: list[Rejected]
    records: dict[int, Record | QuickRecord] = field(default_factory=dict)
    hosts: dict[int, Host] = field(default_factory=dict)
    devices: dict[int, DeviceFacts] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    runs: dict[int, HostRun] = field(default_factory=dict)
    windows: dict[int, Window] = field(default_factory=dict)
    live: Live | None = None

    @property
    def n_to_store(self) -> int:
        """How many items there are for the database."""
        stored: tuple[Sized, ...] = (self.records, self.hosts, self.devices)
        stored += (self.events, self.runs, self.windows)
        return sum(map(len, stored))

    def segments(self) -> Set[str]:
        """Of all that it tells: what else tells of them has to wait for this."""
        watches: tuple[Iterable[Watch | Window], ...] = (self.records.values(), self.hosts.values())
        return {item.segment for items in (*watches, self.windows.values()) for item in items}

    def reject(self, kind: str, reasons: Mapping[int, str]) -> None:
        """Move items to the rejected ones."""
        for index, why in reasons.items():
            del getattr(self, kind)[index]
            self.rejected.append(Rejected(index, why, kind))


def _of_all(some: Sequence[_Goods], get: Callable[[_Goods], Mapping[int, T]]) -> dict[_Key, T]:
    return {(place, index): item for place, goods in enumerate(some) for index, item in get(goods).items()}


def _reject(some: Sequence[_Goods], kind: str, reasons: Mapping[_Key, str]) -> None:
    for (place, index), why in reasons.items():
        some[place].reject(kind, {index: why})


def _not_its(item: Watch | Window, node: str) -> str:
    return f"segment {item.segment} is not one of job {item.job_id} on {node}"


def _from_the_future(items: Mapping[int, DeviceFacts] | Mapping[int, Event], now_s: int) -> dict[int, str]:
    return {
        index: f"at_s: {item.at_s} lies more than a day ahead; set the clock of {item.node}"
        for index, item in items.items()
        if item.at_s > now_s + _AHEAD_S
    }


def _not_told(told: HostRun) -> str:
    return f"{told.node} is a node of Slurm, whose accounting tells the runs there"


def _rejection_key(kind: str) -> str:
    return "rejected" if kind == "records" else f"rejected_{kind}"


def _by_kind(rejected: Iterable[Rejected]) -> dict[str, list[dict[str, Any]]]:
    told: dict[str, list[dict[str, Any]]] = {}
    for item in rejected:
        told.setdefault(_rejection_key(item.kind), []).append({"index": item.index, "why": item.why})
    return told


def _warn(node: str, address: str | None, rejected: Sequence[Rejected]) -> None:
    first = rejected[0]
    log.warning(
        "%r from %s: %d rejected for good, such as %s[%d]: %s",
        node,
        address or "this host",
        len(rejected),
        first.kind,
        first.index,
        first.why,
    )


def _plain(address: str) -> str:
    """An IPv4 address as such, also where it arrived on an IPv6 socket."""
    return address.removeprefix("::ffff:")


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    restart: int | None
    start_s: int | None
    end_s: int | None
    nodes: frozenset[str]


def _denied(record: Watch, runs: Sequence[_Whereabouts], job: QueuedJob | None) -> bool:
    if any(record.node in run.nodes for run in runs) or (job is not None and record.node in job.nodes):
        return False
    if (
        job is not None
        and _shows_all_nodes(job)
        and job.restarts == record.restart
        and job.start_s is not None
    ):
        return record.last_s >= job.start_s - _DENIAL_MARGIN_S
    return any(
        run.nodes
        and run.restart in (None, record.restart)
        and run.start_s is not None
        and run.end_s is not None
        and run.start_s + _DENIAL_MARGIN_S <= record.first_s
        and record.last_s <= run.end_s - _DENIAL_MARGIN_S
        for run in runs
    )


def _shows_all_nodes(job: QueuedJob) -> bool:
    """False where it may have left some already, of which the accounting alone tells, perhaps later."""
    return bool(job.nodes) and job.resized_s is None and job.state != "COMPLETING"
