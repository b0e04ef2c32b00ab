"""The event: something that happened on a node at a moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.records import fields

MAX_EVENT_DATA_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened on a node at a moment, such as `gpu_lost`; key (node, boot_id, n)."""

    node: str
    boot_id: str
    n: int
    at_s: int
    kind: str
    device: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any) -> Event:
        """Check and build an event from decoded JSON; raises RecordError naming the field."""
        fields.an_object("an event", wire)
        for name in ("node", "boot_id", "n", "at_s", "kind"):
            if wire.get(name) is None:
                raise RecordError(f"{name} is missing")
        data = wire.get("data")
        return cls(
            node=fields.word("node", wire["node"]),
            boot_id=fields.word("boot_id", wire["boot_id"]),
            n=fields.whole("n", wire["n"]),
            at_s=fields.moment("at_s", wire["at_s"]),
            kind=fields.word("kind", wire["kind"]),
            device=None if wire.get("device") is None else fields.word("device", wire["device"]),
            job_id=None if wire.get("job_id") is None else fields.whole("job_id", wire["job_id"]),
            data={} if data is None else _data(data),
        )


def _data(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise RecordError(f"data: {fields.shown(data)} must be an object")
    try:
        size = len(json.dumps(data, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"data: cannot be stored: {error}") from None
    if size > MAX_EVENT_DATA_BYTES:
        raise RecordError(f"data: {size} bytes are more than {MAX_EVENT_DATA_BYTES}")
    return data
