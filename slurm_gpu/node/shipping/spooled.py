"""Check the values in the spool as far as slurm-gpud uses them; slurm-gpudbd checks the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether the value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_event(value: Any) -> bool:
    """Return whether the value has the form of an event."""
    return isinstance(value, dict)


def is_run(value: Any) -> bool:
    """Return whether the value has the form of a run of a machine without Slurm."""
    return isinstance(value, dict) and is_count(value.get("seq"))


def is_of_segment(value: Any) -> bool:
    """Return whether the value has the form of a record of a device or the host."""
    return is_run(value) and isinstance(value.get("segment"), str) and isinstance(value.get("final"), bool)


def restored(read: Callable[[Any, dict[str, str]], T], value: dict[str, Any]) -> T:
    """Convert a value to a record; raise RecordError if it is invalid.

    Implausible fields, which older versions wrote, are left out.
    """
    dropped: dict[str, str] = {}
    item = read(value, dropped)
    for why in dropped.values():
        log.warning("a field of segment %s's record in the spool is dropped: %s", value["segment"], why)
    return item
