"""Append zones to the --constraint of a job, and remove them again.

job_submit.lua writes `[zone1|zone2]`, `a100&[zone1|zone2]` or `(a100|h100)&[zone1|zone2]`. All nodes of the
job then come from the first of these zones with room, and each node satisfies the job's own constraint. The
script does not change a constraint if Slurm would reject the result or if the user's own text could not be
recovered exactly.
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
    """A constraint written by job_submit.lua."""

    own: str
    """The user's constraint, verbatim; "" for none."""
    zones: tuple[str, ...]
    """The alternative zones in order."""


def is_zone_name(name: str) -> bool:
    """Return whether Slurm accepts the name as a feature in every kind of expression."""
    return _ZONE.fullmatch(name) is not None


def can_be_joined(own: str, zones: Iterable[str]) -> bool:
    """Return whether zones can be appended: the constraint consists of names joined by either & or |.

    A constraint that contains a zone is not changed, because the user has already chosen a zone.
    """
    return not own or (_OWN.fullmatch(own) is not None and not set(re.split("[&|]", own)) & set(zones))


def joined(own: str, zones: Sequence[str]) -> str:
    """Return the constraint for Slurm; raise ValueError if zones cannot be appended to `own`."""
    if not zones or not all(map(is_zone_name, zones)) or not can_be_joined(own, zones):
        raise ValueError(f"zones {', '.join(zones)} cannot be appended to the constraint {own!r}")
    alternatives = f"[{'|'.join(zones)}]"
    if not own:
        return alternatives
    return f"({own})&{alternatives}" if "&" in own or "|" in own else f"{own}&{alternatives}"


def taken_apart(constraint: str) -> ZoneConstraint | None:
    """Undo `joined`; return None if the constraint does not have the form of its result."""
    match = _WRITTEN.fullmatch(constraint)
    if match is None:
        return None
    own = (match["own"] or "").removeprefix("(").removesuffix(")")
    zones = tuple(match["zones"].split("|"))
    if not all(map(is_zone_name, zones)) or not can_be_joined(own, zones):
        return None
    return ZoneConstraint(own, zones)
