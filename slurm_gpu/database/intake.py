"""What of a shipment counts, and what its node is told that it cannot know itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from slurm_gpu.database.engine import Database
from slurm_gpu.database.importer import batched
from slurm_gpu.database.match import node_set
from slurm_gpu.database.schema import run
from slurm_gpu.database.shipment import WIRE_RANGE, Rejected, Shipment
from slurm_gpu.database.slurmview import Queue, SlurmView
from slurm_gpu.database.store import foreign_segments, store_events, store_records
from slurm_gpu.records import Event, Record
from slurm_gpu.slurm.client import QueuedJob, SlurmNode

log = logging.getLogger(__name__)

# Accounting knows all of a job's runs only some time after the fact, and clocks differ.
_DENIAL_MARGIN_S = 300
_RUNS_PER_QUERY = 500


class Intake:
    """Decides what of a shipment counts, stores it, and tells the node what it cannot know itself."""

    def __init__(self, database: Database, view: SlurmView, cluster: str) -> None:
        self._database, self._view, self._cluster = database, view, cluster

    def take(self, shipment: Shipment, address: str | None) -> dict[str, Any]:
        """Store and answer; `address` is the sender's, None over the Unix socket of this host.

        The answer comes after the commit. Raises DatabaseError when nothing could be stored, and SlurmError
        when only Slurm could tell whether the sender may say this, and it is away: the node tries again.
        """
        queue = self._view.queue()
        rejected = list(shipment.rejected)
        senders: dict[str, str | None] = {}

        def foreign(node: str) -> str | None:
            if node not in senders:
                senders[node] = self._foreign(node, address)
            return senders[node]

        events: list[Event] = []
        for index, event in shipment.events.items():
            why = foreign(event.node)
            if why is None:
                events.append(event)
            else:
                rejected.append(Rejected(index, why, "events"))
        candidates: dict[int, Record] = {}
        for index, record in shipment.records.items():
            why = foreign(record.node)
            if why is None:
                candidates[index] = record
            else:
                rejected.append(Rejected(index, why))

        def store(connection: Connection) -> tuple[int, int, list[Rejected]]:
            denied = self._denials(connection, candidates, queue)
            wanted = [record for index, record in candidates.items() if index not in denied]
            stored, stale = store_records(connection, wanted)
            store_events(connection, events)
            return stored, stale, [Rejected(index, why) for index, why in denied.items()]

        stored, stale, denied = self._database.write(store) if candidates or events else (0, 0, [])
        rejected += denied
        if rejected:
            first = rejected[0]
            log.warning(
                "%r from %s: %d rejected for good, such as %s[%d]: %s",
                shipment.node,
                address or "this host",
                len(rejected),
                first.kind,
                first.index,
                first.why,
            )
        return {
            "stored": stored,
            "stale": stale,
            "rejected": [
                {"index": item.index, "why": item.why} for item in rejected if item.kind == "records"
            ],
            "rejected_events": [
                {"index": item.index, "why": item.why} for item in rejected if item.kind == "events"
            ],
            "want": [],
            "jobs": self._jobs(shipment.node, queue),
            "wire": list(WIRE_RANGE),
        }

    def _foreign(self, node: str, address: str | None) -> str | None:
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
        self, connection: Connection, records: Mapping[int, Record], queue: Queue | None
    ) -> dict[int, str]:
        """Records of jobs that Slurm says were never on the record's node, and of others' segments; and why.

        Doubt counts for the record: a requeued job's next run may be on any node before accounting tells.
        """
        ours = {index: record for index, record in records.items() if record.cluster == self._cluster}
        runs: dict[int, list[_Whereabouts]] = {}
        columns = run.c.job_id, run.c.restart, run.c.start_s, run.c.end_s, run.c.nodes
        for ids in batched({record.job_id for record in ours.values()}, _RUNS_PER_QUERY):
            query = select(*columns).where(run.c.cluster == self._cluster, run.c.job_id.in_(ids))
            for job_id, restart, start_s, end_s, nodes in connection.execute(query):
                place = _Whereabouts(restart, start_s, end_s, node_set(nodes))
                runs.setdefault(job_id, []).append(place)
        jobs = {} if queue is None else queue.by_id
        denied = {
            index: f"segment {record.segment} is not one of job {record.job_id} on {record.node}"
            for index, record in foreign_segments(connection, records).items()
        }
        for index, record in ours.items():
            if _denied(record, runs.get(record.job_id, ()), jobs.get(record.job_id)):
                denied[index] = f"job {record.job_id} was never on {record.node}, says Slurm"
        return denied

    def _jobs(self, node: str, queue: Queue | None) -> dict[str, Any]:
        if queue is None:
            return {}
        slurm_node = (self._view.nodes() or {}).get(node)
        return {str(job.job_id): job_facts(job, node, slurm_node) for job in queue.by_node.get(node, ())}


def job_facts(job: QueuedJob, node: str, slurm_node: SlurmNode | None) -> dict[str, Any]:
    """What hooks cannot know of a job on `node`; docs/api.md lists the keys.

    `granted_mgpu` is per device: 1000 for a whole GPU, the job's part of one for shards, null for unknown.
    """
    shards = job.tres_allocated.get("gres/shard")
    on_node = None if shards is None else round(shards / max(1, len(job.nodes)))
    per_gpu = slurm_node.shards_per_gpu if slurm_node is not None else None
    granted_mgpu: int | None = 1000
    if on_node is not None:
        granted_mgpu = round(on_node * 1000 / per_gpu) if per_gpu else None
    return {
        "array_job_id": job.array_job_id,
        "array_task": job.array_task,
        "het_job_id": job.het_job_id,
        "restart": job.restarts,
        "state": job.state,
        "uid": job.uid,
        "start_s": job.start_s,
        "shards": on_node,
        "granted_mgpu": granted_mgpu,
        "gpu_index": {name: list(index) for name, index in job.gpu_index.get(node, {}).items()},
    }


def _plain(address: str) -> str:
    """An IPv4 address as such, also where it arrived on an IPv6 socket."""
    return address.removeprefix("::ffff:")


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    restart: int | None
    start_s: int | None
    end_s: int | None
    nodes: frozenset[str]


def _denied(record: Record, runs: Sequence[_Whereabouts], job: QueuedJob | None) -> bool:
    if any(record.node in run.nodes for run in runs) or (job is not None and record.node in job.nodes):
        return False
    if job is not None and job.nodes and job.restarts == record.restart and job.start_s is not None:
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
