"""The `audit` table: acts on the cluster, as whoever acted told of them, and never changed after that."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, select

from slurm_gpu.database.reservation import Report, State
from slurm_gpu.database.results import Act
from slurm_gpu.database.schema import NAME_LENGTH, audit
from slurm_gpu.database.upsert import once
from slurm_gpu.errors import UsageError

MOST_AT_ONCE = 100
MOST_SHOWN = 1000
_MOST_EVIDENCE = 1 << 20
_ID = re.compile(r"[0-9a-f]{32}")
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)]
_Text = Annotated[str, Meta(max_length=10_000)]
_OF_REPORTS = (State.APPROVED, State.ACTIVE, State.ENDED, State.RELEASED)


class _Act(msgspec.Struct):
    """One as it comes."""

    id: str
    at_s: Annotated[int, Meta(ge=0, lt=1 << 62)]
    host: _Name
    act: _Name
    subject: _Name
    why: _Text
    old: _Text | None = None
    new: _Text | None = None
    evidence: Any = None


class _Told(msgspec.Struct):
    audit: Annotated[list[_Act], Meta(max_length=MOST_AT_ONCE)] | None = None
    reservations: Annotated[list[Report], Meta(max_length=MOST_AT_ONCE)] | None = None


def read_told(body: bytes) -> tuple[list[_Act], list[Report]]:
    """Acts, and what became of reservations; raises UsageError that names what is wrong."""
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"the acts cannot be read: {error}") from None
    if told.audit is None and told.reservations is None:
        raise UsageError("the acts cannot be read: there are neither audit nor reservations")
    for report in told.reservations or ():
        if report.state not in _OF_REPORTS:
            raise UsageError(
                f"state {report.state} of reservation {report.id} is not slurm-gpuctld's to tell"
            )
    return _checked(told.audit or []), told.reservations or []


def _checked(acts: list[_Act]) -> list[_Act]:
    for act in acts:
        if not _ID.fullmatch(act.id):
            raise UsageError(f"id {act.id!r} must be 32 hexadecimal digits")
        if act.evidence is not None and len(msgspec.json.encode(act.evidence)) > _MOST_EVIDENCE:
            raise UsageError(f"the evidence of act {act.id} is more than 1 MiB")
    return acts


def store_acts(connection: Connection, acts: Sequence[_Act], who: str) -> int:
    """Those that are not there yet, by their ids; returns how many came."""
    rows = [
        {"audit_id": act.id, "who": who, **{name: getattr(act, name) for name in _Act.__struct_fields__[1:]}}
        for act in acts
    ]
    if rows:
        connection.execute(once(connection, audit), rows)
    return len(rows)


def note_act(
    connection: Connection, who: str, at_s: int, act: str, subject: str, why: str, old: str, new: str
) -> None:
    """An act that slurm-gpudbd itself does, in the transaction that does it."""
    row = {
        "audit_id": uuid.uuid4().hex, "at_s": at_s, "who": who, "host": os.uname().nodename, "act": act,
        "subject": subject, "why": why, "old": old, "new": new, "evidence": None,
    }  # fmt: skip
    connection.execute(audit.insert().values(row))


def find_acts(connection: Connection, limit: int) -> list[Act]:
    """The last ones, the newest first."""
    newest = select(audit).order_by(audit.c.at_s.desc(), audit.c.audit_id).limit(limit)
    return [
        Act(**{"id" if name == "audit_id" else name: value for name, value in row.items()})
        for row in connection.execute(newest).mappings()
    ]
