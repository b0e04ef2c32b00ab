"""Find records of jobs that, according to Slurm, were never on the node that sent the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.accounting.resized import began_s
from slurm_gpu.database.accounting.writer import W, Watch, foreign_segments
from slurm_gpu.database.ingest.admitted_items import AdmittedItems, Key, not_its
from slurm_gpu.database.storage.batches import batched
from slurm_gpu.database.storage.schema import run
from slurm_gpu.slurm.client import QueuedJob

# The margin allows for the delay of accounting and for differences between clocks.
_DENIAL_MARGIN_S = 300
_RUNS_PER_QUERY = 500


def denials(
    connection: Connection, cluster: str, some: Sequence[AdmittedItems], records: Mapping[Key, W]
) -> dict[Key, str]:
    """Return the keys of the records to reject, with the reasons.

    A record is rejected if its segment belongs to another node or job, or if its job was never on the node
    that sent the record. In case of doubt, a record is accepted, since a requeued job may start on any node
    before its run is imported.
    """
    foreign = foreign_segments(connection, records)
    denied = {key: not_its(record, record.node) for key, record in foreign.items()}
    jobs: dict[Key, QueuedJob | None] = {}
    for key, record in records.items():
        queue = some[key[0]].queue
        job = None if queue is None else queue.by_id.get(record.job_id)
        if record.cluster == cluster and not (job is not None and record.node in job.nodes):
            jobs[key] = job
    runs: dict[int, list[_RunPeriod]] = {}
    columns = run.c.job_id, run.c.restart, run.c.submit_s, run.c.start_s, run.c.end_s, run.c.nodes
    for ids in batched({records[key].job_id for key in jobs}, _RUNS_PER_QUERY):
        query = select(*columns).where(run.c.cluster == cluster, run.c.job_id.in_(ids))
        for row in connection.execute(query).mappings():
            start_s = None if row["start_s"] is None else began_s(row)
            place = _RunPeriod(row["restart"], start_s, row["end_s"], node_set(row["nodes"]))
            runs.setdefault(row["job_id"], []).append(place)
    for key, job in jobs.items():
        record = records[key]
        if _denied(record, runs.get(record.job_id, ()), job):
            denied[key] = f"job {record.job_id} was never on {record.node} according to Slurm"
    return denied


@dataclass(frozen=True, slots=True)
class _RunPeriod:
    restart: int | None
    start_s: int | None
    end_s: int | None
    nodes: frozenset[str]


def _denied(record: Watch, runs: Sequence[_RunPeriod], job: QueuedJob | None) -> bool:
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
    """Return whether the queue lists all nodes of the run, that is, whether the job has not left any node.

    Accounting also lists the nodes that a job has left, but possibly only after a delay.
    """
    return bool(job.nodes) and job.resized_s is None and job.state != "COMPLETING"
