"""Access the `verdict` table, which contains the watch's findings from their first report to their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update

from slurm_gpu.alerts.suspects import Place, Statement
from slurm_gpu.database.storage.schema import verdict
from slurm_gpu.database.storage.upsert import upsert
from slurm_gpu.wire.answers.verdicts import JobVerdict

HEALTHY = "healthy"
ACCUSES = "slow or failing"
_KEY = ("cluster", "job_id", "start_s", "cause")
_CHANGES = ("kind", "confidence", "devices", "nodes", "since_s", "last_s", "ended_s", "body")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """A verdict, with the uid of the job's user and the job's number of GPUs."""

    verdict: JobVerdict
    uid: int
    n_gpus: float
    ended_s: int | None = None


def store_verdict(connection: Connection, cluster: str, found: StoredVerdict) -> None:
    """Store a new verdict, or update a stored verdict without changing the time of its first report."""
    item = found.verdict
    row: dict[str, Any] = {
        "cluster": cluster,
        "job_id": item.job_id,
        "start_s": item.start_s,
        "cause": item.cause,
        "kind": item.kind[:64],
        "confidence": item.confidence,
        "user": item.user,
        "uid": found.uid,
        "n_gpus": found.n_gpus,
        "devices": [list(place) for place in item.devices],
        "nodes": list(item.nodes),
        "since_s": item.since_s,
        "reported_at_s": item.reported_at_s,
        "last_s": item.last_s,
        "ended_s": found.ended_s,
        "body": dict(item.verdict),
    }
    connection.execute(upsert(connection, verdict, _KEY, _CHANGES), row)


def close_left(connection: Connection, cluster: str) -> int:
    """Close the verdicts that an earlier watch left open; each ends at the time of its last finding."""
    left = verdict.c.cluster == cluster, verdict.c.ended_s.is_(None)
    done = connection.execute(update(verdict).where(*left).values(ended_s=verdict.c.last_s))
    return done.rowcount


def statements(connection: Connection, cluster: str, since_s: float) -> list[Statement]:
    """Return the evidence about GPUs since `since_s`."""
    recent = verdict.c.cluster == cluster, verdict.c.last_s >= int(since_s)
    of_gpus = verdict.c.cause.in_((ACCUSES, HEALTHY))
    columns = (
        *(verdict.c.job_id, verdict.c.start_s, verdict.c.cause, verdict.c.user),
        *(verdict.c.n_gpus, verdict.c.devices, verdict.c.since_s, verdict.c.reported_at_s, verdict.c.last_s),
    )
    rows = connection.execute(select(*columns).where(*recent, of_gpus)).mappings()
    return [
        Statement(
            job=f"{row['job_id']} {row['start_s']}",
            user=row["user"],
            at_s=row["last_s"],
            since_s=row["reported_at_s"] if row["since_s"] is None else row["since_s"],
            accuses=row["cause"] == ACCUSES,
            n_gpus=row["n_gpus"],
            devices=[_place(item) for item in row["devices"]],
        )
        for row in rows
    ]


def _place(item: list[str]) -> Place:
    node, uuid = item
    return node, uuid
