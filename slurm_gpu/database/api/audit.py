"""Access the `audit` table, which contains changes to the cluster as reported by their authors.

Rows are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from slurm_gpu.database.api.controller_body import ReportedAuditEvent
from slurm_gpu.database.storage.schema import audit
from slurm_gpu.database.storage.upsert import once
from slurm_gpu.wire.answers.runs import AuditEvent

MOST_SHOWN = 1000


def store_audit(connection: Connection, acts: Sequence[ReportedAuditEvent], who: str) -> int:
    """Store the events whose IDs are not stored yet; return the total number of events given."""
    rows = [
        {
            "audit_id": act.id,
            "reported_by": who,
            **{name: getattr(act, name) for name in ReportedAuditEvent.__struct_fields__[1:]},
        }
        for act in acts
    ]
    if rows:
        connection.execute(once(connection, audit), rows)
    return len(rows)


def find_audit(connection: Connection, limit: int) -> list[AuditEvent]:
    """Return the latest `limit` events, newest first."""
    newest = select(audit).order_by(audit.c.at_s.desc(), audit.c.audit_id).limit(limit)
    return [
        AuditEvent(**{"id" if name == "audit_id" else name: value for name, value in row.items()})
        for row in connection.execute(newest).mappings()
    ]
