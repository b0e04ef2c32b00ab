"""What must survive this daemon: open allocations, the newest record of each segment, events.

Records and events stay until slurm-gpudbd has taken them, or has said that it never will: those are kept as
files in `rejected/`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.node.allocations import Allocation
from slurm_gpu.node.journal import Journal
from slurm_gpu.records import Event, Record

log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ship, as it stood when it was picked: a record (with its `seq`) or an event."""

    key: str
    seq: int
    wire: Mapping[str, Any]

    @property
    def is_event(self) -> bool:
        """An event, not a record."""
        return self.key.startswith("event/")


class Spool:
    """`<state-dir>/spool`; changes are durable once `commit` has returned True."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory)
        self._rejected = directory / "rejected"
        # What is to be shipped, and whether it should go at once.
        self._waiting: dict[str, bool] = {}
        for key in self._journal.keys("event/"):
            self._waiting[key] = True
        for key in self._journal.keys("record/"):
            wire = self._journal.get(key)
            if wire["seq"] > self._shipped_seq(key):
                self._waiting[key] = wire["final"]

    def commit(self) -> bool:
        """Flush to disk; see Journal.commit."""
        return self._journal.commit()

    def close(self) -> None:
        """Give up the file."""
        self._journal.close()

    # Allocations

    def allocations(self) -> list[Allocation]:
        """Those that were open when the spool was last written."""
        return [Allocation.from_json(self._journal.get(key)) for key in self._journal.keys("allocation/")]

    def save_allocation(self, allocation: Allocation) -> None:
        """It is open."""
        self._journal.put(f"allocation/{allocation.key.segment}", allocation.to_json())

    def drop_allocation(self, allocation: Allocation) -> None:
        """It is closed, or goes on as another segment; its records go once they are shipped."""
        segment = allocation.key.segment
        self._journal.remove(f"allocation/{segment}")
        for key in self._journal.keys(f"record/{segment}/"):
            if key not in self._waiting:
                self._forget(key)

    # Records and events

    def save_record(self, record: Record) -> None:
        """Replace what is known of this segment on this device."""
        key = f"record/{record.segment}/{record.device}"
        self._journal.put(key, record.to_wire())
        self._waiting[key] = record.final

    def last_record(self, segment: str, device: str) -> Record | None:
        """The newest one that was saved."""
        wire = self._journal.get(f"record/{segment}/{device}")
        # Histogram keys are numbers in a record and words in JSON; from_wire knows.
        return None if wire is None else Record.from_wire(wire)

    def save_event(self, event: Event) -> None:
        """Keep it until it is shipped."""
        key = f"event/{event.n}"
        self._journal.put(key, event.to_wire())
        self._waiting[key] = True

    # Shipping

    def has_urgent(self) -> bool:
        """Is there a final record or an event to ship?"""
        return any(self._waiting.values())

    def waiting_keys(self) -> list[str]:
        """Keys of all that is to be shipped some time, oldest first."""
        return list(self._waiting)

    def waiting(self, limit: int, also: Set[str] = frozenset()) -> Sequence[Item]:
        """At most `limit` things to ship, oldest first: the urgent ones, and those whose keys are given."""
        keys = [key for key, urgent in self._waiting.items() if urgent or key in also]
        items = []
        for key in keys[:limit]:
            wire = self._journal.get(key)
            items.append(Item(key, wire.get("seq", 0), wire))
        return items

    def shipped(self, item: Item) -> None:
        """slurm-gpudbd has it; it may have been superseded meanwhile."""
        current = self._journal.get(item.key)
        if current is None:
            return
        if current.get("seq", 0) == item.seq:
            self._waiting.pop(item.key, None)
        if item.is_event:
            self._forget(item.key)
        elif item.key in self._waiting or f"allocation/{item.wire['segment']}" in self._journal:
            self._journal.put(f"shipped/{item.key}", item.seq)
        else:
            self._forget(item.key)

    def reject(self, item: Item, why: str) -> None:
        """slurm-gpudbd will never take it: keep it as a file for people, and never send it again."""
        log.warning("%s was rejected: %s; kept in %s", item.key, why, self._rejected)
        name = _UNSAFE.sub("_", item.key) + ".json"
        try:
            self._rejected.mkdir(mode=0o700, exist_ok=True)
            with (self._rejected / name).open("w") as file:
                file.write(json.dumps({"why": why, "item": item.wire}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            log.error("%s cannot be kept: %s; it was %s", name, error, json.dumps(item.wire))  # noqa: TRY400
        self.shipped(item)

    def _shipped_seq(self, key: str) -> int:
        seq = self._journal.get(f"shipped/{key}")
        return -1 if seq is None else int(seq)

    def _forget(self, key: str) -> None:
        self._journal.remove(key)
        self._journal.remove(f"shipped/{key}")
