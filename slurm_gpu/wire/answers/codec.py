"""Decode and encode answers of the read API according to the types that declare them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from slurm_gpu.errors import DatabaseError

T = TypeVar("T")


def to_json(answer: Any) -> Any:
    """Return an answer, or several, as values that json.dumps accepts."""
    return msgspec.to_builtins(answer, str_keys=True)


def from_json(kind: type[T], value: Any) -> T:
    """Convert decoded JSON to `kind`, ignoring keys of a newer version.

    Raise DatabaseError if a field is invalid. The error names the field.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise DatabaseError(f"the answer from slurm-gpudbd cannot be read: {error}") from error


def decode(kind: type[T], body: bytes) -> T:
    """Convert the body of an answer to `kind`, as `from_json` does; raise ValueError if it is not JSON."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise DatabaseError(f"the answer from slurm-gpudbd cannot be read: {error}") from error
