"""Checks of single fields: each takes the field's name and its decoded JSON, and returns the value.

All raise RecordError, which names the field, quotes the value and says what would be right. What a measured
amount may be is in slurm_gpu.plausible; the other limits keep sums finite and times printable, whatever a
broken node sends.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from slurm_gpu.errors import RecordError
from slurm_gpu.plausible import MAX_AMOUNT, MAX_SECONDS, MAX_TEXT, is_text, is_word, range_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Checks = Mapping[str, Callable[[str, Any], Any]]
"""By the field's name: what takes that name and decoded JSON, and returns the value."""

Dropped = dict[str, str]
"""Fields of an item that are left out, and why."""

SEGMENT_PATTERN = "[0-9a-f]{16}"
_HEX = re.compile(SEGMENT_PATTERN)
_INT64 = 2**63 - 1
MAX_MOMENT_S = 253_370_764_799
"""The last second of the year 9998: it is a date in every time zone."""
MAX_JOB_ID = 2**32 - 1
"""Slurm counts jobs, and how often each was requeued, in 32 bits."""
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
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): _inner(item) for key, item in value.items()}
    return value.to_wire() if hasattr(value, "to_wire") else value


def checked(
    what: str, wire: Any, checks: Checks, required: Collection[str], dropped: Dropped | None = None
) -> dict[str, Any]:
    """Return the fields of an item, such as "a record", that are present; unknown ones are ignored.

    A wrong field that is not required is left out and added to `dropped`, where that is given. Raises
    RecordError where the item is no object, or naming the first field that is missing or wrong.
    """
    an_object(what, wire)
    values: dict[str, Any] = {}
    for name, check in checks.items():
        value = wire.get(name)
        if value is not None:
            try:
                values[name] = check(name, value)
            except RecordError as error:
                if dropped is None or name in required:
                    raise
                dropped[name] = str(error)
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
    """Return a measured amount; its name ends with its unit."""
    return number(name, value, *range_of(name))


def whole(name: str, value: Any, high: int = _INT64) -> int:
    """A whole number ≥ 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        limit = "" if high == _INT64 else f" and ≤ {high}"
        raise RecordError(f"{name}: {shown(value)} must be a whole number ≥ 0{limit}")
    return value


def whole_quantity(name: str, value: Any) -> int:
    """Return a counted amount; its name ends with its unit."""
    return whole(name, value, int(range_of(name).high))


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
    if not isinstance(value, str) or not is_word(value):
        raise RecordError(f"{name}: {shown(value)} must be a name of 1 to 255 letters, digits and _.:+/-")
    return value


def text(name: str, value: Any) -> str:
    """A line that a person may read: no control characters, no half characters."""
    if not isinstance(value, str) or not is_text(value):
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
