"""The body of POST /v1/node: from bytes as sent to checked records and events."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slurm_gpu.errors import RecordError
from slurm_gpu.records import WIRE_VERSION, Event, Record

WIRE_RANGE = (WIRE_VERSION, WIRE_VERSION)
MAX_BODY_BYTES = 1 << 20
MAX_INFLATED_BYTES = 16 << 20

T = TypeVar("T")


class ShipmentError(Exception):
    """The shipment as a whole cannot be taken: `status` is the HTTP answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record or event that will never be stored; `index` is its place in the shipment."""

    index: int
    why: str
    kind: str = "records"


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a node sent: its well-formed records and events by index, and what is wrong with the others."""

    node: str
    records: Mapping[int, Record]
    events: Mapping[int, Event]
    rejected: Sequence[Rejected]


def parse_shipment(body: bytes, encoding: str) -> Shipment:
    """Check the body as sent; raises ShipmentError (400, 413, 426) when it is not a shipment at all."""
    if encoding == "gzip":
        body = _inflate(body)
    elif encoding not in ("", "identity"):
        raise ShipmentError(400, f"Content-Encoding: {encoding!r} is not understood; send gzip")
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ShipmentError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ShipmentError(400, "the body must be an object {wire, node, boot_id, records, …}")
    wire = value.get("wire")
    if isinstance(wire, bool) or not isinstance(wire, int):
        raise ShipmentError(400, f"wire: {wire!r} must be the version of the wire, such as {WIRE_VERSION}")
    if not WIRE_RANGE[0] <= wire <= WIRE_RANGE[1]:
        raise ShipmentError(426, f"wire {wire} is not spoken here, but {WIRE_RANGE[0]} to {WIRE_RANGE[1]}")
    node = value.get("node")
    if not isinstance(node, str) or not 0 < len(node) <= 255:
        raise ShipmentError(400, f"node: {node!r} must be the node's name")
    records, bad_records = _each("records", value, Record.from_wire)
    events, bad_events = _each("events", value, Event.from_wire)
    return Shipment(node, records, events, [*bad_records, *bad_events])


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        inflated = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise ShipmentError(400, f"the body is not gzip: {error}") from None
    if inflater.unconsumed_tail:
        raise ShipmentError(
            413, f"the body inflates to more than {MAX_INFLATED_BYTES} bytes; send less at once"
        )
    if not inflater.eof or inflater.unused_data:
        raise ShipmentError(400, "the body is not one whole gzip stream")
    return inflated


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _each(
    name: str, shipment: Mapping[str, Any], read: Callable[[Any], T]
) -> tuple[dict[int, T], list[Rejected]]:
    items = shipment.get(name)
    if items is None:
        return {}, []
    if not isinstance(items, list):
        raise ShipmentError(400, f"{name} must be a list, not {type(items).__name__}")
    good: dict[int, T] = {}
    bad: list[Rejected] = []
    for index, item in enumerate(items):
        try:
            good[index] = read(item)
        except RecordError as error:
            bad.append(Rejected(index, str(error)[:500], name))
    return good, bad
