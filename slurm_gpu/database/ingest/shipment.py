"""Parse and check the body of POST /v1/node."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slurm_gpu import __version__
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.dropped_fields import DroppedFields
from slurm_gpu.database.ingest.unknown_fields import Unknown
from slurm_gpu.database.live.rejections import Rejected
from slurm_gpu.database.storage.fast_decoder import DecodedRecord, decode_valid
from slurm_gpu.errors import RecordError
from slurm_gpu.wire import (
    WIRE_RANGE,
    WIRE_VERSION,
    DeviceFacts,
    Event,
    Host,
    HostRun,
    Live,
    Record,
    Window,
    fields,
)
from slurm_gpu.wire.record import NAMES_OF_WIRE_1

MAX_INFLATED_BYTES = 16 << 20
# Inflated size of a usual shipment. Larger shipments are parsed one at a time, because parsing takes up to 30
# times their size in memory.
SMALL_BYTES = 1 << 18
# Maximum number of items of one shipment, over all kinds.
MAX_ITEMS = 1000
MAX_VALUES = 400_000
# Limits for one shipment, since time and memory depend on these numbers. A record has at most 340 values, and
# 30 lists and objects. Without limits, 16 MiB of [] would block all other shipments for seconds.
MAX_GROUPS = 100_000
# Kinds that may be rejected item by item; `live` is one item.
KINDS = ("records", "hosts", "devices", "events", "runs", "windows", "live")
_LISTS = ("records", "hosts", "devices", "events", "runs", "steps", "windows")
# The keys of the items of each kind.
_ITEMS = {
    kind: frozenset(f.name for f in dataclasses.fields(item))
    for kind, item in {
        "records": Record,
        "hosts": Host,
        "devices": DeviceFacts,
        "events": Event,
        "runs": HostRun,
        "windows": Window,
    }.items()
}
_ITEMS["records"] |= NAMES_OF_WIRE_1.keys()
_KEYS = frozenset((*_ITEMS, "wire", "node", "boot_id", "version", "live", "open", "has"))
_MAX_VERSION = 64
# Number of digits of the largest float. The limit exists because parsing an integer takes quadratic time.
_MAX_DIGITS = 309

_JOB_ID = re.compile(r"\d{1,18}", re.ASCII)

T = TypeVar("T")
_ONE_LARGE = threading.Lock()


class WireError(ShipmentError):
    """Raised if the wire version of a shipment is not supported.

    `is_passing` is true for the next release's version, since slurm-gpud of the next release also supports
    this release's version and will switch to it.
    """

    def __init__(self, wire: int, sender: str) -> None:
        low, high = WIRE_RANGE
        older = "that slurm-gpud" if wire < low else "slurm-gpudbd"
        super().__init__(
            426,
            f"{sender} uses wire version {fields.shown(wire)}, but slurm-gpudbd {__version__} supports "
            f"{low} to {high}: upgrade {older}",
        )
        self.is_passing = wire == high + 1


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """The data that a node sends only once and considers stored.

    `devices` contains at_s and the number of the node's devices. `runs` contains the seq of each run that has
    not ended, by job ID.
    """

    devices: tuple[int, int] | None = None
    runs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedShipment:
    """The well-formed items of a shipment by index, and the errors of its other items.

    `open_jobs` contains the jobs with GPUs that the node considers open. `version` is the version of
    slurm-gpud. `unknown` lists unknown names by kind of item; their values are not stored. `dropped` lists
    fields that were dropped because their values are impossible. `n_bytes` is the length of the uncompressed
    body.
    """

    node: str
    version: str | None = None
    records: Mapping[int, Record | DecodedRecord] = field(default_factory=dict)
    hosts: Mapping[int, Host] = field(default_factory=dict)
    devices: Mapping[int, DeviceFacts] = field(default_factory=dict)
    events: Mapping[int, Event] = field(default_factory=dict)
    runs: Mapping[int, HostRun] = field(default_factory=dict)
    windows: Mapping[int, Window] = field(default_factory=dict)
    live: Live | None = None
    open_jobs: Sequence[int] = ()
    rejected: Sequence[Rejected] = ()
    unknown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dropped: DroppedFields = field(default_factory=DroppedFields)
    n_bytes: int = 0
    has: StoredClaim = field(default_factory=StoredClaim)

    @property
    def n_to_store(self) -> int:
        """Return the number of items to store."""
        stored: tuple[Sized, ...] = (self.records, self.hosts, self.devices)
        stored += (self.events, self.runs, self.windows)
        return sum(map(len, stored))


def parse_shipment(body: bytes, encoding: str) -> CheckedShipment:
    """Parse and check a body; raise ShipmentError (400, 413, 426) if it is not a shipment."""
    if encoding not in ("gzip", "", "identity"):
        raise ShipmentError(400, f"Content-Encoding: {encoding!r} is not supported; send gzip")
    text = _inflate(body, SMALL_BYTES) if encoding == "gzip" else body
    if text is not None and len(text) <= SMALL_BYTES:
        return _read(text)
    with _ONE_LARGE:
        return _read(_inflate(body, MAX_INFLATED_BYTES) if encoding == "gzip" else body)


def _read(body: bytes | None) -> CheckedShipment:
    if body is None:
        raise ShipmentError(
            413, f"the uncompressed body is larger than {MAX_INFLATED_BYTES} bytes; send less at once"
        )
    _check_effort(body)
    value = decode_valid(body, _parse)
    if value is None:
        value = _parse(body)
    if not isinstance(value, dict):
        raise ShipmentError(400, "the body must be an object {wire, node, boot_id, records, …}")
    wire = value.get("wire")
    if isinstance(wire, bool) or not isinstance(wire, int):
        raise ShipmentError(400, f"wire: {fields.shown(wire)} must be a wire version, such as {WIRE_VERSION}")
    if not WIRE_RANGE[0] <= wire <= WIRE_RANGE[1]:
        raise WireError(wire, _sender(value))
    try:
        node = fields.word("node", value.get("node"))
    except RecordError as error:
        raise ShipmentError(400, str(error)) from None
    n_items = sum(len(_list(name, value)) for name in _LISTS)
    if n_items > MAX_ITEMS:
        raise ShipmentError(413, f"{n_items} items exceed the maximum of {MAX_ITEMS}; send fewer at once")
    rejected: list[Rejected] = []
    dropped, unknown = DroppedFields(), Unknown()
    unknown.note("shipment", {name: item for name, item in value.items() if item not in (None, [])}, _KEYS)
    for kind, of_kind in _ITEMS.items():
        for item in _list(kind, value):
            unknown.note(kind, item, of_kind)
    return CheckedShipment(
        node=node,
        version=_version(value.get("version")),
        records=_each("records", value, _record, rejected, dropped),
        hosts=_each("hosts", value, Host.from_wire, rejected, dropped),
        devices=_each("devices", value, DeviceFacts.from_wire, rejected, dropped),
        events=_each("events", value, Event.from_wire, rejected, dropped),
        runs=_each("runs", value, HostRun.from_wire, rejected, dropped),
        windows=_each("windows", value, Window.from_wire, rejected, dropped),
        live=_live(value, rejected, dropped),
        open_jobs=_open_jobs(value),
        rejected=rejected,
        unknown=unknown.names,
        dropped=dropped,
        n_bytes=len(body),
        has=_has(value.get("has")),
    )


def _inflate(body: bytes, most: int) -> bytes | None:
    """Return the uncompressed body, or None if it is larger than `most` bytes."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        inflated = inflater.decompress(body, most)
    except zlib.error as error:
        raise ShipmentError(400, f"the body is not gzip: {error}") from None
    if inflater.unconsumed_tail:
        return None
    if not inflater.eof or inflater.unused_data:
        raise ShipmentError(400, "the body must be exactly one complete gzip stream")
    return inflated


def _check_effort(body: bytes) -> None:
    """Reject a body that would take a long time to parse.

    Commas and brackets within strings are counted too.
    """
    if len(body) <= min(MAX_VALUES, MAX_GROUPS):
        return  # too short to exceed a limit
    counted = (
        ("values", body.count(b",") + 1, MAX_VALUES),
        ("lists and objects", body.count(b"[") + body.count(b"{"), MAX_GROUPS),
    )
    for what, count, most in counted:
        if count > most:
            raise ShipmentError(413, f"{count} {what} exceed the maximum of {most}; send fewer at once")


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise ShipmentError(400, f"the body is not JSON: {error}") from None


def _record(item: Any, dropped: fields.Dropped) -> Record | DecodedRecord:
    return item if isinstance(item, DecodedRecord) else Record.from_wire(item, dropped)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, more than {_MAX_DIGITS}")
    return int(digits)


def _list(name: str, shipment: Mapping[str, Any]) -> list[Any]:
    items = shipment.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        raise ShipmentError(400, f"{name} must be a list, not {type(items).__name__}")
    return items


def _each(
    name: str,
    shipment: Mapping[str, Any],
    read: Callable[[Any, fields.Dropped], T],
    rejected: list[Rejected],
    dropped: DroppedFields,
) -> dict[int, T]:
    good: dict[int, T] = {}
    for index, item in enumerate(_list(name, shipment)):
        of_item: fields.Dropped = {}
        try:
            good[index] = read(item, of_item)
        except RecordError as error:
            rejected.append(Rejected(index, str(error)[:500], name))
        else:
            dropped.add(name, index, of_item)
    return good


def _live(shipment: Mapping[str, Any], rejected: list[Rejected], dropped: DroppedFields) -> Live | None:
    live, of_live = shipment.get("live"), fields.Dropped()
    try:
        found = live if live is None or isinstance(live, Live) else Live.from_wire(live, of_live)
    except RecordError as error:
        rejected.append(Rejected(0, str(error)[:500], "live"))
        return None
    dropped.add("live", 0, of_live)
    return found


def _open_jobs(shipment: Mapping[str, Any]) -> list[int]:
    """Return the valid job IDs in `open`; ignore other values."""
    whole = (item for item in _list("open", shipment)[:MAX_ITEMS] if type(item) is int)
    return [job_id for job_id in whole if 0 < job_id <= fields.MAX_JOB_ID]


def _has(value: Any) -> StoredClaim:
    """Parse `has`; ignore invalid parts, since `has` affects only the answer."""
    claim = value if isinstance(value, dict) else {}
    devices: tuple[int, int] | None = None
    match claim.get("devices"):
        case {"at_s": int(at_s), "n": int(n)}:
            devices = at_s, n
    runs = claim.get("runs")
    known = list(runs.items())[:MAX_ITEMS] if isinstance(runs, dict) else []
    ids = {int(name): seq for name, seq in known if _JOB_ID.fullmatch(name) and type(seq) is int}
    return StoredClaim(devices, ids)


def _sender(shipment: Mapping[str, Any]) -> str:
    """Return the sender's name and version, as far as they are readable in an unknown wire version."""
    node, version = shipment.get("node"), _version(shipment.get("version"))
    slurm_gpud = "slurm-gpud" if version is None else f"slurm-gpud {version}"
    try:
        return f"{slurm_gpud} of {fields.word('node', node)}"
    except RecordError:
        return slurm_gpud


def _version(value: Any) -> str | None:
    known = isinstance(value, str) and 0 < len(value) <= _MAX_VERSION and value.isprintable()
    return value if known else None
