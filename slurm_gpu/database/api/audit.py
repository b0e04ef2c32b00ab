"""The `audit` table: acts on the cluster, as whoever acted told of them, and never changed after that."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from slurm_gpu.database.api.controller_body import ToldAct
from slurm_gpu.database.storage.schema import audit
from slurm_gpu.database.storage.upsert import once
from slurm_gpu.wire.answers.runs import AuditEvent

MOST_SHOWN = 1000


def store_acts(connection: Connection, acts: Sequence[ToldAct], who: str) -> int:
    """Those that are not there yet, by their ids; returns how many came."""
    rows = [
        {
            "audit_id": act.id,
            "who": who,
            **{name: getattr(act, name) for name in ToldAct.__struct_fields__[1:]},
        }
        for act in acts
    ]
    if rows:
        connection.execute(once(connection, audit), rows)
    return len(rows)


def find_acts(connection: Connection, limit: int) -> list[AuditEvent]:
    """The last ones, the newest first."""
    newest = select(audit).order_by(audit.c.at_s.desc(), audit.c.audit_id).limit(limit)
    return [
        AuditEvent(**{"id" if name == "audit_id" else name: value for name, value in row.items()})
        for row in connection.execute(newest).mappings()
    ]
