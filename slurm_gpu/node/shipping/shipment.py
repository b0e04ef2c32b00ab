"""One request to slurm-gpudbd: what goes into it, and what the answer says of each part."""

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
from slurm_gpu.wire.record import with_current_names

MAX_BODY_BYTES = 1 << 20
_JOB_ID = re.compile(r"\d{1,18}", re.ASCII)

JobFacts = Mapping[int, Mapping[str, Any]]
"""What slurm-gpudbd tells of jobs, by raw job id; docs/api.md has the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingShipment:
    """All of one request: `items` lie in the spool until they are taken, the rest only in memory.

    `wire` is the version that both sides speak.
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
    """What slurm-gpudbd should have, to be told what it lacks; None where it would not know the key."""

    @property
    def extras(self) -> bool:
        """Is there anything besides what lies in the spool?"""
        return bool(self.devices or self.windows or self.live)

    def without_extras(self) -> OutgoingShipment:
        """Only what lies in the spool."""
        return replace(self, devices=(), windows=(), live=None)

    def fitting(self) -> tuple[OutgoingShipment, bytes]:
        """As much of it as is not too large, with its body: windows go first, then items, then all else.

        What does not go now is not in the shipment that is given back.
        """
        shipment = self
        while len(body := shipment.body()) > MAX_BODY_BYTES:
            if shipment.windows:
                shipment = replace(shipment, windows=shipment.windows[: len(shipment.windows) // 2])
            elif len(shipment.items) > 1:
                shipment = replace(shipment, items=shipment.items[: len(shipment.items) // 2])
            elif shipment.extras:
                shipment = shipment.without_extras()
            else:
                break  # one record alone: slurm-gpudbd says what is wrong with it
        return shipment, body

    def body(self) -> bytes:
        """Compressed JSON; docs/contracts.md, section 5."""
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
        # The best compression would take five times as long for a tenth less.
        return gzip.compress(json.dumps(wire, separators=(",", ":")).encode(), 1, mtime=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipmentReply:
    """What slurm-gpudbd says to a shipment that it took.

    `refused` are keys of items that it never will, and why; `jobs` what hooks cannot know of the node's jobs;
    `ended` those of its open jobs that Slurm says are over; `want` the jobs whose windows it asks for;
    `ignored` what it did not know, by kind; `dropped` fields that it did not store, by kind and name with the
    reason; `version` is its own, `wire` what it speaks; `lacks` the kinds that it has lost, or never took;
    None of a slurm-gpudbd that does not report it; likewise `live_interval_s`, how often it requires values.
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
    """What the body of a 200 says; what makes no sense in it is left out.

    None where that is no answer of slurm-gpudbd's, which says how many it stored: whoever else answers, such
    as a proxy, must not have us forget what it never kept.
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
    """The versions of the wire that an answer of any status names, None where it names none."""
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    return read_range(answer.get("wire")) if isinstance(answer, dict) else None


def _by_job(value: Any) -> JobFacts:
    facts = value.items() if isinstance(value, dict) else ()
    return {int(job): of_job for job, of_job in facts if _JOB_ID.fullmatch(job) and isinstance(of_job, dict)}
