"""Access the `reservation` table: requests, operators' decisions, and reports from slurm-gpuctld."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select, update

from slurm_gpu.database.storage.schema import audit, reservation
from slurm_gpu.database.storage.watermarks import set_watermark
from slurm_gpu.errors import UsageError
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.reservation import Report, Reservation, ReservationState, in_words

_OPEN = [state.value for state in ReservationState if not state.is_over]
_PROMISED = [state.value for state in ReservationState if state.is_promised]
# Transactions that request, approve or cancel a reservation lock the row of this watermark until they end.
_TURN = "reservations"
_MOST_A_DAY = 50
"""Maximum number of requests of one user per day; the limit exists because rows are never removed."""
_DAY_S = 86400
# The sender's clock may be at most this far ahead of this host's clock.
_AHEAD_S = 60


def find(connection: Connection, cluster: str, past: int, ids: Collection[int]) -> list[Reservation]:
    """Return the open reservations, the last `past` ended reservations, and those in `ids`, sorted by ID."""
    table = reservation.c
    here = select(reservation).where(table.cluster == cluster)
    found = list(connection.execute(here.where(table.state.in_(_OPEN))).mappings())
    if past:
        over = here.where(table.ended_s.is_not(None)).order_by(table.ended_s.desc(), table.reservation_id)
        found += connection.execute(over.limit(past)).mappings()
    if ids:
        found += connection.execute(here.where(table.reservation_id.in_(ids))).mappings()
    by_id = {row["reservation_id"]: _read(row) for row in found}
    return [by_id[number] for number in sorted(by_id)]


def find_one(connection: Connection, cluster: str, number: int) -> Reservation | None:
    """Return the reservation with this ID, or None if it does not exist."""
    return next((one for one in find(connection, cluster, 0, [number]) if one.id == number), None)


def store_request(connection: Connection, values: dict[str, Any], open_per_user: int) -> int:
    """Store a request and return its ID; raise UsageError if its user has reached a limit."""
    _wait_for_turn(connection, values["requested_s"])
    _refuse_too_many(connection, values)
    table = reservation.c
    mine = select(table.reservation_id).where(
        table.cluster == values["cluster"], _of_user(values), table.state.in_(_OPEN)
    )
    ids = sorted(connection.execute(mine).scalars())
    if len(ids) >= open_per_user:
        numbers = ", ".join(map(str, ids))
        raise UsageError(
            f"{values['user']} has {len(ids)} open reservations ({numbers}), and the limit is "
            f"{open_per_user}: wait, or cancel one with `slurm-gpu reserve cancel ID`"
        )
    row = {**values, "state": ReservationState.REQUESTED.value}
    inserted = connection.execute(reservation.insert().values(row)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def _of_user(values: Mapping[str, Any]) -> ColumnElement[bool]:
    """Return a condition that selects requests with this uid, or without a uid but with this user name."""
    table = reservation.c
    return or_(table.uid == values["uid"], and_(table.uid.is_(None), table.user == values["user"]))


def _refuse_too_many(connection: Connection, values: dict[str, Any]) -> None:
    """Raise UsageError if the daily limit is reached: repeated requests would otherwise fill the table."""
    table, now_s = reservation.c, values["requested_s"]
    lately = select(func.count(), func.min(table.requested_s)).where(
        table.cluster == values["cluster"],
        _of_user(values),
        table.requested_s > now_s - _DAY_S,
    )
    n, first_s = connection.execute(lately).one()
    if n >= _MOST_A_DAY:
        again = dt.datetime.fromtimestamp(first_s + _DAY_S, dt.UTC)
        raise UsageError(
            f"{values['user']} has reached the limit of {n} requests within a day, including cancelled ones: "
            f"repeat the request after {again:%Y-%m-%dT%H:%MZ}"
        )


def approve(
    connection: Connection, one: Reservation, start_s: int, end_s: int, nodes: str, who: str, now_s: int
) -> None:
    """Approve a reservation; raise UsageError if another reservation overlaps in nodes and time."""
    one = _as_it_is(connection, one, now_s)
    if one.state is not ReservationState.REQUESTED:
        raise UsageError(f"reservation {one.id} is {one.state}: only a requested reservation can be approved")
    mine = set(expand(nodes))
    if len(mine) < one.n_nodes:
        raise UsageError(
            f"reservation {one.id} requires {counted(one.n_nodes, 'node')}, but {nodes} contains {len(mine)}"
        )
    if taken := _promised_to_another(connection, one, start_s, end_s, mine):
        raise UsageError(f"{taken} for part of this time; try again")
    changed = {"start_s": start_s, "end_s": end_s, "nodes": nodes}
    _decide(connection, one, ReservationState.APPROVED, who, now_s, None, changed)
    promise = in_words(nodes, start_s, end_s)
    _note_act(connection, who, now_s, "reservation approved", one.name, one.why or "", one.state, promise)


def _promised_to_another(
    connection: Connection, one: Reservation, start_s: int, end_s: int, mine: set[str]
) -> str | None:
    """Name the nodes that another reservation includes for part of the time; return None if all are free."""
    table = reservation.c
    others = select(reservation).where(
        table.cluster == one.cluster,
        table.reservation_id != one.id,
        table.state.in_(_PROMISED),
        table.start_s < end_s,
        table.end_s > start_s,
    )
    for other in map(_read, connection.execute(others).mappings()):
        both = mine & set(expand(other.nodes or ""))
        if both:
            return f"reservation {other.id} has {', '.join(sorted(both))}"
    return None


def _moved(connection: Connection, one: Reservation, nodes: str, now_s: int) -> dict[str, Any]:
    """Return the columns to update when a reservation's nodes change: `nodes`, or `error` if any is taken."""
    _wait_for_turn(connection, now_s)
    assert one.start_s is not None
    assert one.end_s is not None
    taken = _promised_to_another(connection, one, one.start_s, one.end_s, set(expand(nodes)))
    if taken is None:
        return {"nodes": nodes}
    return {"error": f"in Slurm, this reservation is on {nodes}, but {taken}"}


def end(
    connection: Connection, one: Reservation, state: ReservationState, who: str, now_s: int, why: str
) -> None:
    """Deny or cancel a reservation; raise UsageError if it has ended or can no longer be denied."""
    one = _as_it_is(connection, one, now_s)
    if one.state.is_over:
        raise UsageError(f"reservation {one.id} is {one.state} already")
    if state is ReservationState.DENIED and one.state is not ReservationState.REQUESTED:
        raise UsageError(
            f"reservation {one.id} is {one.state}, so it cannot be denied; to cancel it, run "
            f"`slurm-gpu reserve cancel {one.id}`"
        )
    over = {"ended_s": now_s, "ended_why": why}
    if state is ReservationState.DENIED or one.decided_s is None:
        _decide(connection, one, state, who, now_s, why, over)
    else:
        _require(_set(connection, one, {"state": state.value, **over}), one)
    _note_act(connection, who, now_s, f"reservation {state}", one.name, why, one.state, state)


def store_reports(connection: Connection, cluster: str, reports: Sequence[Report], now_s: int) -> None:
    """Store reports from slurm-gpuctld; ignore reports on unknown, unapproved or ended reservations.

    Reports from a sender whose clock is ahead are also ignored, since they would end reservations early.
    """
    known = {one.id: one for one in find(connection, cluster, 0, [one.id for one in reports])}
    for report in reports:
        one = known.get(report.id)
        if one is None or not one.state.is_promised:
            continue
        if report.at_s > now_s + _AHEAD_S:
            error = (
                f"slurm-gpuctld's clock is {report.at_s - now_s} s ahead of slurm-gpudbd's: its reports "
                "are ignored"
            )
            _set(connection, one, {"error": error})
            continue
        changed: dict[str, Any] = {"error": report.error}
        if report.nodes is not None and report.nodes != one.nodes:
            changed |= _moved(connection, one, report.nodes, now_s)
        if not (one.state is ReservationState.ACTIVE and report.state is ReservationState.APPROVED):
            changed["state"] = report.state.value
        if one.first_start_s is None and report.first_start_s is not None:
            changed |= {
                "first_job_id": report.first_job_id,
                "first_eligible_s": report.first_eligible_s,
                "first_start_s": report.first_start_s,
            }
        if report.state.is_over:
            changed |= {"ended_s": report.at_s, "ended_why": report.why}
        _set(connection, one, changed)


def _wait_for_turn(connection: Connection, now_s: int) -> None:
    """Block other requests, approvals and cancellations until this transaction ends."""
    set_watermark(connection, _TURN, now_s)


def _as_it_is(connection: Connection, one: Reservation, now_s: int) -> Reservation:
    """Lock the table and read the reservation again, since another request may have changed it."""
    _wait_for_turn(connection, now_s)
    fresh = find_one(connection, one.cluster, one.id)
    assert fresh is not None  # rows are never removed
    return fresh


def _decide(
    connection: Connection,
    one: Reservation,
    state: ReservationState,
    who: str,
    now_s: int,
    why: str | None,
    more: dict[str, Any],
) -> None:
    decided = {"decided_s": now_s, "decided_by": who, "decided_why": why}
    _require(_set(connection, one, {"state": state.value, **decided, **more}), one)


def _require(was_set: bool, one: Reservation) -> None:
    if not was_set:
        raise UsageError(f"reservation {one.id} has just changed and is no longer {one.state}: try again")


def _set(connection: Connection, one: Reservation, values: dict[str, Any]) -> bool:
    """Update the reservation unless slurm-gpuctld has changed its state; return whether it was updated."""
    table = reservation.c
    same = update(reservation).where(table.reservation_id == one.id, table.state == one.state.value)
    return connection.execute(same.values(values)).rowcount == 1


def _read(row: RowMapping) -> Reservation:
    values = {("id" if name == "reservation_id" else name): value for name, value in row.items()}
    return Reservation(**values | {"state": ReservationState(values["state"])})


def _note_act(
    connection: Connection, who: str, at_s: int, action: str, subject: str, why: str, old: str, new: str
) -> None:
    """Store an audit event for a decision in the same transaction as the decision."""
    row = {
        "audit_id": uuid.uuid4().hex,
        "at_s": at_s,
        "reported_by": who,
        "host": os.uname().nodename,
        "action": action,
        "subject": subject,
        "why": why,
        "old": old,
        "new": new,
        "evidence": None,
    }
    connection.execute(audit.insert().values(row))
