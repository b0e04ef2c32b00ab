"""A job's own --constraint with the zones behind it, and taken apart again.

job_submit.lua writes `[zone1|zone2]`, `a100&[zone1|zone2]` or `(a100|h100)&[zone1|zone2]`: all of a job's
nodes from one of these zones, the first that has room, and each node with what the job's own constraint asks.
What it cannot write so that Slurm takes it, and it can be taken apart again to the letter, it leaves alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAME = r"[A-Za-z0-9_.:+=-]+"
_OWN = re.compile(rf"{_NAME}(?:&{_NAME})*|{_NAME}(?:\|{_NAME})*")
_ZONE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_WRITTEN = re.compile(rf"(?:(?P<own>{_NAME}|\({_NAME}(?:[&|]{_NAME})+\))&)?\[(?P<zones>[^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class ZoneConstraint:
    """A constraint as job_submit.lua wrote it."""

    own: str
    """To the letter what the user wrote; "" for nothing."""
    zones: tuple[str, ...]
    """The alternatives in their order."""


def is_zone_name(name: str) -> bool:
    """Whether Slurm takes it for a feature's name in every expression."""
    return _ZONE.fullmatch(name) is not None


def can_be_joined(own: str, zones: Iterable[str]) -> bool:
    """Whether a user's constraint can have zones behind it: names with & or | between them, not both.

    One that names a zone has chosen already.
    """
    return not own or (_OWN.fullmatch(own) is not None and not set(re.split("[&|]", own)) & set(zones))


def joined(own: str, zones: Sequence[str]) -> str:
    """The constraint for Slurm; raises ValueError where `own` cannot be joined."""
    if not zones or not all(map(is_zone_name, zones)) or not can_be_joined(own, zones):
        raise ValueError(f"{own!r} cannot have the zones {', '.join(zones)} behind it")
    alternatives = f"[{'|'.join(zones)}]"
    if not own:
        return alternatives
    return f"({own})&{alternatives}" if "&" in own or "|" in own else f"{own}&{alternatives}"


def taken_apart(constraint: str) -> ZoneConstraint | None:
    """What was joined; None where it is not of that form."""
    match = _WRITTEN.fullmatch(constraint)
    if match is None:
        return None
    own = (match["own"] or "").removeprefix("(").removesuffix(")")
    zones = tuple(match["zones"].split("|"))
    if not all(map(is_zone_name, zones)) or not can_be_joined(own, zones):
        return None
    return ZoneConstraint(own, zones)
