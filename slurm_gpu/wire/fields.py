"""Validate single fields.

Each function takes the field's name and its decoded JSON, and returns the value. If the value is invalid, the
function raises RecordError with the field, the value and the valid values. The ranges of measured quantities
are in slurm_gpu.plausible. The other limits keep sums finite and times printable.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from slurm_gpu.errors import RecordError
from slurm_gpu.plausible import MAX_AMOUNT, MAX_MOMENT_S, MAX_SECONDS, MAX_TEXT, is_text, is_word, range_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Checks = Mapping[str, Callable[[str, Any], Any]]
"""Maps a field name to its check, which takes the name and decoded JSON and returns the value."""

Dropped = dict[str, str]
"""Maps the name of an omitted field to the reason."""

SEGMENT_PATTERN = "[0-9a-f]{16}"
_HEX = re.compile(SEGMENT_PATTERN)
_INT64 = 2**63 - 1
# Slurm has 32 bits for job IDs and for the number of requeues.
MAX_JOB_ID = 2**32 - 1
_PLAIN = frozenset({str, int, float, bool})


def to_wire(item: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as a dict for json.dumps, without None values: a missing key means null."""
    values = ((name, getattr(item, name)) for name in _names(type(item)))
    return {name: _inner(value) for name, value in values if value is not None}


@functools.cache
def _names(kind: type[DataclassInstance]) -> Sequence[str]:
    return [f.name for f in fields(kind)]


def _inner(value: Any) -> Any:
    # The most frequent types come first, since a node encodes thousands of values every 10 s.
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
    """Return the fields that are present in an item, such as "a record", ignoring unknown ones.

    Raise RecordError if the item is not an object, or if a required field, which the error names, is missing
    or invalid. Any other invalid field is omitted and added to `dropped`, or raises RecordError if `dropped`
    is None.
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
    """Return a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"{name}: {shown(value)} must be a number")
    try:
        amount = float(value)
    except OverflowError:  # valid JSON may have a whole number of hundreds of digits
        amount = math.inf
    if not low <= amount <= high:  # nan is outside every interval
        raise RecordError(f"{name}: {shown(value)} must be from {low:g} to {high:g}")
    return amount


def seconds(name: str, value: Any) -> float:
    """Return a duration in seconds."""
    return number(name, value, high=MAX_SECONDS)


def quantity(name: str, value: Any) -> float:
    """Return a measured quantity; its name ends with its unit."""
    return number(name, value, *range_of(name))


def whole(name: str, value: Any, high: int = _INT64) -> int:
    """Return a whole number ≥ 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        limit = "" if high == _INT64 else f" and ≤ {high}"
        raise RecordError(f"{name}: {shown(value)} must be a whole number ≥ 0{limit}")
    return value


def whole_quantity(name: str, value: Any) -> int:
    """Return a counted quantity; its name ends with its unit."""
    return whole(name, value, int(range_of(name).high))


def moment(name: str, value: Any) -> int:
    """Return a time in UTC epoch seconds."""
    return whole(name, value, MAX_MOMENT_S)


def job_number(name: str, value: Any) -> int:
    """Return a raw job ID, or the number of requeues."""
    return whole(name, value, MAX_JOB_ID)


def flag(name: str, value: Any) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise RecordError(f"{name}: {shown(value)} must be true or false")
    return value


def word(name: str, value: Any) -> str:
    """Return a name with the characters that Slurm, Linux and NVIDIA use."""
    if not isinstance(value, str) or not is_word(value):
        raise RecordError(f"{name}: {shown(value)} must be a name of 1 to 255 letters, digits and _.:+/-")
    return value


def text(name: str, value: Any) -> str:
    """Return one printable line, without control characters or lone surrogates."""
    if not isinstance(value, str) or not is_text(value):
        raise RecordError(f"{name}: {shown(value)} must be text of 1 to {MAX_TEXT} printable characters")
    return value


def segment(name: str, value: Any) -> str:
    """Return a segment ID: 64 bits in hexadecimal."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise RecordError(f"{name}: {shown(value)} must be 16 hexadecimal digits")
    return value


def mapping(name: str, value: Any, what: str, most: int) -> dict[Any, Any]:
    """Return an object with at most `most` keys."""
    if not isinstance(value, dict) or len(value) > most:
        raise RecordError(f"{name}: must be an object with at most {most} entries ({what})")
    return value


def numbers(name: str, value: Any, length: int) -> list[Any]:
    """Return a list of `length` items."""
    if not isinstance(value, list) or len(value) != length:
        raise RecordError(f"{name}: {shown(value)} must be a list of {length} numbers")
    return value


def an_object(what: str, value: Any) -> dict[str, Any]:
    """Return an item, such as a record, after checking that it is an object."""
    if not isinstance(value, dict):
        raise RecordError(f"{what} must be an object, not {type(value).__name__}")
    return value


def shown(value: Any) -> str:
    """Return a value as text for a message, cut to 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        text = f"a number of {value.bit_length()} bits"
    return text if len(text) <= 100 else f"{text[:100]}…"
