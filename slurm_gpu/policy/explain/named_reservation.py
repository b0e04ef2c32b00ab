"""Predict whether Slurm accepts a job in the reservation that the job names, and on which nodes it can run.

Measured on 22.05: Slurm refuses a job whose reservation does not exist, or is not for its user or account.
Slurm also refuses a job that requires more nodes than the reservation has, or names nodes outside it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import few

_MOST_NAMED = 12
# Flag of reservations whose jobs may also use other nodes.
_NOT_BOUND = "FLEX"


@dataclass(frozen=True, slots=True)
class KnownReservations:
    """The reservations in Slurm at `now_s`."""

    all: Sequence[SlurmReservation]
    now_s: float


def may_not(names: str, user: str, account: str | None, known: KnownReservations) -> Iterator[str]:
    """Yield the reasons why Slurm refuses the job; nothing if one of the named reservations accepts it."""
    reasons = [_reason(name, user, account, known) for name in names.split(",")]
    if None not in reasons:
        yield from (reason for reason in reasons if reason is not None)


def nodes_in(names: str, nodes: Collection[SlurmNode], known: KnownReservations) -> list[SlurmNode] | None:
    """Return the nodes that the job can use; None if its reservations do not restrict the nodes."""
    named = [one for one in known.all if one.name in names.split(",")]
    if not named or any(_NOT_BOUND in one.flags or not one.nodes for one in named):
        return None
    of_any = {name for one in named for name in expand(one.nodes)}
    return [node for node in nodes if node.name in of_any]


def _reason(name: str, user: str, account: str | None, known: KnownReservations) -> str | None:
    found = next((one for one in known.all if one.name == name), None)
    if found is None:
        names = sorted(one.name for one in known.all)
        close = [f"; did you mean {one}?" for one in difflib.get_close_matches(name, names, 1)]
        there = few(names, _MOST_NAMED) or "none"
        return f"--reservation: {name!r} does not exist (reservations: {there}){''.join(close)}"
    if found.end_s <= known.now_s:
        return f"--reservation: {name} has ended"
    for what, member, allowed in (
        ("users", user, found.users),
        ("accounts", account, found.accounts),
    ):
        if member is not None and not _is_among(member, allowed):
            return f"--reservation: {name} is not for {member}; it is for {what} {', '.join(sorted(allowed))}"
    return None


def _is_among(name: str, allowed: frozenset[str]) -> bool:
    """Return whether a reservation is for this user or account.

    An empty set allows all names. If all names in the set begin with -, all other names are allowed.
    """
    if not allowed:
        return True
    if all(one.startswith("-") for one in allowed):
        return f"-{name}" not in allowed
    return name in allowed
