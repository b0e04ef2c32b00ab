"""Checks of single fields: each takes the field's name and its decoded JSON, and returns the value.

All raise RecordError, which names the field, quotes the value and says what would be right. The limits are
far above what can happen; they keep sums finite and times printable, whatever a broken node sends.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from slurm_gpu.errors import RecordError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Checks = Mapping[str, Callable[[str, Any], Any]]
"""By the field's name: what takes that name and decoded JSON, and returns the value."""

SEGMENT_PATTERN = "[0-9a-f]{16}"
WORD_PATTERN = "[A-Za-z0-9_.:+/-]{1,255}"
_HEX, _NAME = re.compile(SEGMENT_PATTERN), re.compile(WORD_PATTERN)
_INT64 = 2**63 - 1
MAX_TEXT = 255
MAX_SECONDS = 100 * 366 * 86400.0
"""A century."""
MAX_MOMENT_S = 253_370_764_799
"""The last second of the year 9998: it is a date in every time zone."""
MAX_AMOUNT = 1e24
MAX_JOB_ID = 2**32 - 1
"""Slurm counts jobs, and how often each was requeued, in 32 bits."""
_MAX_W = 1e5
# A mean of values that are all 1 may come out as a little more.
_ROUNDING = 1e-6
_MOST_BY_UNIT = {
    "_frac": 1 + _ROUNDING,
    "_pct": 100 * (1 + _ROUNDING),
    "_mib": 2.0**30,
    "_w": _MAX_W,
    "_j": _MAX_W * MAX_SECONDS,
    "_c": 1e3,
    "_mhz": 1e5,
    "processes": 2.0**22,
}
"""By how a name ends; Linux has so many processes at most."""
_PLAIN = frozenset({str, int, float, bool})


def to_wire(item: DataclassInstance) -> dict[str, Any]:
    """A dataclass as json.dumps takes it; gaps are left out, since missing means null on the wire."""
    values = ((name, getattr(item, name)) for name in _names(type(item)))
    return {name: _inner(value) for name, value in values if value is not None}


@functools.cache
def _names(kind: type[DataclassInstance]) -> Sequence[str]:
    return [f.name for f in fields(kind)]


def _inner(value: Any) -> Any:
    # What most values are comes first: a node turns thousands of them into JSON each 10 s.
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {str(key): _inner(item) for key, item in value.items()}
    return value.to_wire() if hasattr(value, "to_wire") else value


def checked(what: str, wire: Any, checks: Checks, required: Collection[str]) -> dict[str, Any]:
    """The fields of an item, such as "a record", that are there; unknown ones are ignored.

    Raises RecordError where it is no object, or naming the first field that is missing or wrong.
    """
    an_object(what, wire)
    values: dict[str, Any] = {}
    for name, check in checks.items():
        value = wire.get(name)
        if value is not None:
            values[name] = check(name, value)
        elif name in required:
            raise RecordError(f"{name} is missing")
    return values


def number(name: str, value: Any, low: float = 0.0, high: float = MAX_AMOUNT) -> float:
    """A finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"{name}: {shown(value)} must be a number")
    try:
        amount = float(value)
    except OverflowError:  # a whole number of hundreds of digits is valid JSON
        amount = math.inf
    if not low <= amount <= high:  # nan is in no interval
        raise RecordError(f"{name}: {shown(value)} must lie from {low:g} to {high:g}")
    return amount


def seconds(name: str, value: Any) -> float:
    """A duration."""
    return number(name, value, high=MAX_SECONDS)


def quantity(name: str, value: Any) -> float:
    """A measured amount, bounded as the unit at the end of the name demands."""
    return number(name, value, high=greatest(name))


def greatest(name: str) -> float:
    """The most that a measured amount can be, by the unit at the end of its name."""
    return next((most for unit, most in _MOST_BY_UNIT.items() if name.endswith(unit)), MAX_AMOUNT)


def whole(name: str, value: Any, high: int = _INT64) -> int:
    """A whole number ≥ 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        limit = "" if high == _INT64 else f" and ≤ {high}"
        raise RecordError(f"{name}: {shown(value)} must be a whole number ≥ 0{limit}")
    return value


def moment(name: str, value: Any) -> int:
    """UTC epoch seconds."""
    return whole(name, value, MAX_MOMENT_S)


def job_number(name: str, value: Any) -> int:
    """A raw job id, or how often a job was requeued."""
    return whole(name, value, MAX_JOB_ID)


def flag(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise RecordError(f"{name}: {shown(value)} must be true or false")
    return value


def word(name: str, value: Any) -> str:
    """A name as Slurm, Linux and NVIDIA make them."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise RecordError(f"{name}: {shown(value)} must be a name of 1 to 255 letters, digits and _.:+/-")
    return value


def text(name: str, value: Any) -> str:
    """A line that a person may read: no control characters, no half characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise RecordError(f"{name}: {shown(value)} must be a text of 1 to {MAX_TEXT} printable characters")
    return value


def segment(name: str, value: Any) -> str:
    """64 bits in hexadecimal."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise RecordError(f"{name}: {shown(value)} must be 16 hexadecimal digits")
    return value


def mapping(name: str, value: Any, what: str, most: int) -> dict[Any, Any]:
    """An object with at most so many keys."""
    if not isinstance(value, dict) or len(value) > most:
        raise RecordError(f"{name}: must be an object of {what}, at most {most}")
    return value


def numbers(name: str, value: Any, length: int) -> list[Any]:
    """A list of a certain length."""
    if not isinstance(value, list) or len(value) != length:
        raise RecordError(f"{name}: {shown(value)} must be a list of {length} numbers")
    return value


def an_object(what: str, value: Any) -> dict[str, Any]:
    """The whole of an item, such as a record."""
    if not isinstance(value, dict):
        raise RecordError(f"{what} must be an object, not {type(value).__name__}")
    return value


def shown(value: Any) -> str:
    """A value as it stands in a message, cut where it is long."""
    try:
        told = repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        told = f"a number of {value.bit_length()} bits"
    return told if len(told) <= 100 else f"{told[:100]}…"
