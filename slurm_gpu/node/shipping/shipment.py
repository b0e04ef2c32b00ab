"""Build one request to slurm-gpudbd and parse its answer."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_gpu import __version__
from slurm_gpu.node.shipping.post import Reply
from slurm_gpu.node.shipping.shipment_queue import Item
from slurm_gpu.node.shipping.spooled import is_count
from slurm_gpu.node.shipping.wire_version import Range, read_dropped, read_ignored, read_range
from slurm_gpu.wire import WIRE_VERSION, DeviceFacts
from slurm_gpu.wire.headers import MAX_BODY_BYTES
from slurm_gpu.wire.record import with_current_names

_JOB_ID = re.compile(r"\d{1,18}", re.ASCII)

# slurm-gpudbd's reports on jobs by raw job ID; docs/api.md describes the fields.
JobFacts = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingShipment:
    """The content of one request.

    `items` remain in the spool until slurm-gpudbd has stored them; the rest is only in memory. `wire` is a
    wire version that both sides support. `has` lists the items that slurm-gpudbd should have stored, so that
    slurm-gpudbd can report missing items; it is None if slurm-gpudbd does not support the key.
    """

    node: str
    boot_id: str
    wire: int = WIRE_VERSION
    items: Sequence[Item] = ()
    devices: Sequence[DeviceFacts] = ()
    windows: Sequence[Mapping[str, Any]] = ()
    live: Mapping[str, Any] | None = None
    open_jobs: Sequence[int] = ()
    has: Mapping[str, Any] | None = None

    @property
    def extras(self) -> bool:
        """Return whether the shipment contains anything except items of the spool."""
        return bool(self.devices or self.windows or self.live)

    def without_extras(self) -> OutgoingShipment:
        """Return the shipment with only the items of the spool."""
        return replace(self, devices=(), windows=(), live=None)

    def fitting(self) -> tuple[OutgoingShipment, bytes]:
        """Return the shipment, reduced to the maximum size, and its body; drop windows first, then items."""
        shipment = self
        while len(body := shipment.body()) > MAX_BODY_BYTES:
            if shipment.windows:
                shipment = replace(shipment, windows=shipment.windows[: len(shipment.windows) // 2])
            elif len(shipment.items) > 1:
                shipment = replace(shipment, items=shipment.items[: len(shipment.items) // 2])
            elif shipment.extras:
                shipment = shipment.without_extras()
            else:
                break  # a single item remains; slurm-gpudbd reports the error
        return shipment, body

    def body(self) -> bytes:
        """Return the shipment as compressed JSON (docs/contracts.md)."""
        wire: dict[str, Any] = {"wire": self.wire, "node": self.node, "boot_id": self.boot_id}
        wire |= {"version": __version__, "records": [], "hosts": [], "events": [], "runs": []}
        for item in self.items:
            wire[item.kind].append(item.wire if self.wire == 1 else with_current_names(item.wire))
        wire |= {
            "devices": [facts.to_wire() for facts in self.devices],
            "windows": list(self.windows),
            "open": list(self.open_jobs),
        }
        if self.live is not None:
            wire["live"] = self.live
        if self.has is not None:
            wire["has"] = self.has
        # The best compression takes five times as long and saves another tenth.
        return gzip.compress(json.dumps(wire, separators=(",", ":")).encode(), 1, mtime=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipmentReply:
    """slurm-gpudbd's answer to a shipment that it accepted.

    - `refused`: the reasons for permanent rejections, by the key of the item
    - `jobs`: reports on the node's jobs
    - `ended`: the open jobs that have ended, according to Slurm
    - `want`: the jobs whose windows slurm-gpudbd requests
    - `ignored`: the keys that slurm-gpudbd does not support, by kind of item
    - `dropped`: the reasons why fields were not stored, by kind of item and name of the field
    - `version`, `wire`: slurm-gpudbd's release and wire versions
    - `lacks`: the kinds of items that slurm-gpudbd lost or never received, or None if not reported
    - `live_interval_s`: the interval at which live values are required, or None if not reported
    """

    refused: Mapping[str, str]
    jobs: JobFacts
    ended: JobFacts
    want: Sequence[int]
    ignored: Mapping[str, Sequence[str]]
    dropped: Mapping[tuple[str, str], str]
    version: str | None
    wire: Range | None
    lacks: Collection[str] | None = None
    live_interval_s: float | None = None


def read_answer(reply: Reply, items: Sequence[Item]) -> ShipmentReply | None:
    """Parse the body of a response with status 200; leave out malformed parts.

    Return None if the body contains no count of stored items: an answer from another server, such as a proxy,
    must not cause items to be dropped.
    """
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or not is_count(answer.get("stored")):
        return None
    refused: dict[str, str] = {}
    for kind in ("records", "hosts", "events", "runs"):
        sent = [item for item in items if item.kind == kind]
        entries = answer.get("rejected" if kind == "records" else f"rejected_{kind}")
        for entry in entries if isinstance(entries, list) else ():
            index = entry.get("index") if isinstance(entry, dict) else None
            if isinstance(index, int) and 0 <= index < len(sent):
                refused[sent[index].key] = str(entry.get("why"))[:500]
    want, version, lacks = answer.get("want"), answer.get("version"), answer.get("lacks")
    interval_s = answer.get("live_interval_s")
    return ShipmentReply(
        refused=refused,
        jobs=_by_job(answer.get("jobs")),
        ended=_by_job(answer.get("ended")),
        want=[job for job in want if isinstance(job, int)] if isinstance(want, list) else [],
        ignored=read_ignored(answer.get("ignored")),
        dropped=read_dropped(answer.get("dropped")),
        version=version if isinstance(version, str) else None,
        wire=read_range(answer.get("wire")),
        lacks=list(map(str, lacks)) if isinstance(lacks, list) else None,
        live_interval_s=interval_s if isinstance(interval_s, int | float) else None,
    )


def spoken(reply: Reply) -> Range | None:
    """Return the wire versions in an answer with any status, or None if they are absent."""
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    return read_range(answer.get("wire")) if isinstance(answer, dict) else None


def _by_job(value: Any) -> JobFacts:
    facts = value.items() if isinstance(value, dict) else ()
    return {int(job): of_job for job, of_job in facts if _JOB_ID.fullmatch(job) and isinstance(of_job, dict)}
