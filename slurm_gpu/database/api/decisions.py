"""Access the `decision` table, which contains the lines of decisions.log that slurm-gpuctld sends."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, or_, select

from slurm_gpu.database.api.controller_body import ReportedDecision
from slurm_gpu.database.storage.schema import decision
from slurm_gpu.database.storage.upsert import once
from slurm_gpu.wire.answers.runs import Decision

# Maximum number of decisions returned for a token, which normally belongs to one decision.
_MOST_FOUND = 100


def store_decisions(connection: Connection, decisions: Sequence[ReportedDecision], cluster: str) -> int:
    """Store the decisions whose IDs are not stored yet; return the total number of decisions given."""
    names = ReportedDecision.__struct_fields__[1:]
    rows = [
        {"decision_id": item.id, "cluster": cluster, **{name: getattr(item, name) for name in names}}
        for item in decisions
    ]
    if rows:
        connection.execute(once(connection, decision), rows)
    return len(rows)


def has_decision(connection: Connection, decision_id: str) -> bool:
    """Return whether the decision with this ID is stored."""
    found = select(decision.c.decision_id).where(decision.c.decision_id == decision_id)
    return connection.execute(found).first() is not None


def find_decisions(connection: Connection, cluster: str, token: str) -> list[Decision]:
    """Return the decisions with this token, oldest first."""
    ours = select(decision).where(decision.c.cluster == cluster, decision.c.token == token)
    ordered = ours.order_by(decision.c.at_s, decision.c.decision_id).limit(_MOST_FOUND)
    return [_decision(row) for row in connection.execute(ordered).mappings()]


def find_refusals(connection: Connection, cluster: str, rule: str | None, limit: int) -> list[Decision]:
    """Return the latest `limit` refusals, newest first; if `rule` is given, only refusals by this rule."""
    found = select(decision).where(decision.c.cluster == cluster, decision.c.verdict == "deny")
    if rule is not None:
        named, rules = f"{rule}:", decision.c.rules
        found = found.where(
            or_(rules.startswith(named, autoescape=True), rules.contains(f",{named}", autoescape=True))
        )
    newest = found.order_by(decision.c.at_s.desc(), decision.c.decision_id).limit(limit)
    return [_decision(row) for row in connection.execute(newest).mappings()]


def _decision(row: RowMapping) -> Decision:
    return Decision(
        **{
            "id" if name == "decision_id" else str(name): value
            for name, value in row.items()
            if name != "cluster"
        }
    )
