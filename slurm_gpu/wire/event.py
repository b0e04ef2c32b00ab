"""Define events that occur on a node, such as the loss of a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import fields

MAX_EVENT_DATA_BYTES = 4096
_MAX_LEVELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event that occurred on a node, such as `gpu_lost`; its key is (node, boot_id, n)."""

    node: str
    boot_id: str
    n: int
    at_s: int
    kind: str
    device: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> Event:
        """Return a validated event from decoded JSON, ignoring unknown fields.

        A missing or invalid key, `at_s` or `kind` raises RecordError, which names the field. Any other
        invalid field is omitted and added to `dropped`, or raises RecordError if `dropped` is None.
        """
        required = ("node", "boot_id", "n", "at_s", "kind")
        return cls(**fields.checked("an event", wire, _CHECKS, required, dropped))


def _data(name: str, data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise RecordError(f"{name}: {fields.shown(data)} must be an object")
    _check_levels(data)
    try:
        size = len(json.dumps(data, allow_nan=False))
        # A lone surrogate can be stored, but cannot be encoded in an answer.
        json.dumps(data, ensure_ascii=False).encode()
    except ValueError as error:
        raise RecordError(f"{name}: cannot be stored: {error}") from None
    if size > MAX_EVENT_DATA_BYTES:
        raise RecordError(f"{name}: {size} bytes exceed the maximum of {MAX_EVENT_DATA_BYTES}")
    return data


_CHECKS: fields.Checks = {
    **dict.fromkeys(("node", "boot_id", "kind", "device"), fields.word),
    "n": fields.whole,
    "job_id": fields.job_number,
    "at_s": fields.moment,
    "data": _data,
}


def _check_levels(value: Any, levels: int = _MAX_LEVELS) -> None:
    """Raise RecordError for deeply nested data, which would exhaust the stack of a later reader."""
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        return
    if not levels:
        raise RecordError(f"data: is nested more than {_MAX_LEVELS} levels deep")
    for item in inner:
        _check_levels(item, levels - 1)
