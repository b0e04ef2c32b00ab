"""Queue records, host records, runs and events until slurm-gpudbd has stored them.

For each segment, only the newest records of its devices and of the host are kept. Items that slurm-gpudbd
rejects are kept as files in `rejected/`. The size of the waiting items is limited on disk and, while the disk
is full, in memory. Above the limits, the oldest items are dropped and counted.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from slurm_gpu.node.shipping.journal import DurableMap
from slurm_gpu.node.shipping.rejected import RejectedFiles
from slurm_gpu.node.shipping.spooled import is_count, is_event, is_of_segment, is_run
from slurm_gpu.wire import Event, Host, HostRun, Record
from slurm_gpu.wire.record import as_of_wire_1

log = logging.getLogger(__name__)

# The limit suffices for more than 24 hours without slurm-gpudbd while each of 8 GPUs runs one 10-second job
# after another.
MAX_BYTES = 256 << 20
MAX_BYTES_IN_MEMORY = 64 << 20
# Space counts as available again when at most this part of the limit is used.
_SPACE_FRACTION = 0.9
_SHIPPED_AS = {"record": "records", "host": "hosts", "event": "events", "run": "runs"}
_DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Item:
    """A record, host record, run or event to ship, as it was when it was selected."""

    key: str
    seq: int
    wire: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Return the list to which the item belongs in a shipment: records, hosts, runs or events."""
        return _SHIPPED_AS[self.key.partition("/")[0]]


class ShipmentQueue:
    """The items in a journal that have to be shipped, oldest first; `len` returns their number.

    Final records, runs and events are urgent: they are shipped within seconds. `open_segments` are the
    segments whose allocations are open. `Spool.commit` commits the changes.
    """

    def __init__(
        self,
        journal: DurableMap,
        rejected: RejectedFiles,
        open_segments: Sequence[str],
        *,
        max_bytes: int,
        max_bytes_in_memory: int,
    ) -> None:
        self._journal, self._rejected = journal, rejected
        self._max_bytes, self._max_bytes_in_memory = max_bytes, max_bytes_in_memory
        # The keys of all waiting items, and whether each is urgent.
        self._waiting: dict[str, bool] = {}
        # The seq of each run that has not ended, on a machine without Slurm.
        self._open_runs: dict[str, int] = {}
        # The records of open allocations, by segment.
        self._of_open: dict[str, set[str]] = {segment: set() for segment in open_segments}
        for key, _ in self._sound("event/", is_event):
            self._waiting[key] = True
        for key, wire in self._sound("run/", is_run):
            self._note_run(key, wire)
            if wire["seq"] > self._shipped_seq(key):
                self._waiting[key] = True
        segments = self._sound("record/", is_of_segment), self._sound("host/", is_of_segment)
        for key, wire in itertools.chain(*segments):
            if wire["segment"] in self._of_open:
                self._of_open[wire["segment"]].add(key)
            if wire["seq"] > self._shipped_seq(key):
                self._waiting[key] = wire["final"] or wire["segment"] not in self._of_open

    def _sound(self, prefix: str, is_sound: Callable[[Any], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield valid values by key; log and remove values that a damaged disk or an edit made invalid."""
        for key in self._journal.keys(prefix):
            value = self._journal.get(key)
            if is_sound(value):
                yield key, value
            else:
                log.error("%s cannot be read and is left out: %.300r", key, value)
                self._journal.remove(key)

    # Adding

    def open_segment(self, segment: str) -> None:
        """Keep the records of that segment, even after they are shipped, until the segment is closed."""
        self._of_open.setdefault(segment, set())

    def close_segment(self, segment: str) -> None:
        """Make the unshipped records of that segment urgent, and remove its shipped records."""
        for key in self._of_open.pop(segment, ()):
            if key in self._waiting:
                self._waiting[key] = True
            else:
                self._forget(key)

    def put_record(self, key: str, record: Record | Host) -> bytes:
        """Add the record, or replace the record with that key; return it as JSON."""
        # In this form, the previous release can read the record after a downgrade.
        text = self._journal.put(key, as_of_wire_1(record.to_wire()))
        self._waiting[key] = record.final
        if record.segment in self._of_open:
            self._of_open[record.segment].add(key)
        return text

    def put_run(self, key: str, run: HostRun) -> None:
        """Add the run, or replace the run with that key; it is kept until it has ended."""
        wire = run.to_wire()
        self._journal.put(key, wire)
        self._note_run(key, wire)
        self._waiting[key] = True

    def _note_run(self, key: str, wire: Mapping[str, Any]) -> None:
        self._open_runs.pop(key, None)
        if wire.get("end_s") is None:
            self._open_runs[key] = wire["seq"]

    def put_event(self, key: str, event: Event) -> None:
        """Add the event."""
        self._journal.put(key, event.to_wire())
        self._waiting[key] = True

    # Shipping

    def urgent(self, limit: int) -> int:
        """Return the number of urgent items, counting at most `limit`."""
        found = (key for key, urgent in self._waiting.items() if urgent)
        return sum(1 for _ in itertools.islice(found, limit))

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return len(self._waiting)

    def waiting_keys(self) -> list[str]:
        """Return the keys of all waiting items, oldest first."""
        return list(self._waiting)

    def never_shipped(self) -> list[str]:
        """Return the keys of items that were never shipped, oldest first."""
        return [key for key in self._waiting if f"shipped/{key}" not in self._journal]

    def is_young(self, key: str, least_allocated_s: float) -> bool:
        """Return whether an open segment's record with that key covers less than `least_allocated_s`."""
        if not key.startswith("record/") or self._waiting.get(key) is not False:
            return False
        match self._journal.get(key):
            case {"held_s": int() | float() as allocated_s}:
                return allocated_s < least_allocated_s
        return False

    def shipped_open_runs(self) -> dict[int, int]:
        """Return the seq of each run that slurm-gpudbd has stored and that has not ended, by job ID."""
        found = (item for item in self._open_runs.items() if item[0] not in self._waiting)
        return {int(key.removeprefix("run/")): seq for key, seq in found}

    def ship_open_runs_again(self) -> None:
        """Send again all runs that have not ended, because slurm-gpudbd has lost some of them."""
        self._waiting.update(dict.fromkeys(self._open_runs, True))

    def waiting(self, limit: int, also: Set[str] = frozenset()) -> Sequence[Item]:
        """Return at most `limit` items, oldest first: urgent items, and those whose keys are in `also`."""
        keys = (key for key, urgent in self._waiting.items() if urgent or key in also)
        items = []
        for key in list(itertools.islice(keys, limit)):
            wire = self._journal.get(key)
            if wire is None:  # the disk has lost the item
                self._drop(key)
            else:
                items.append(Item(key, wire.get("seq", 0), wire))
        return items

    def shipped(self, item: Item) -> None:
        """Record that slurm-gpudbd has stored an item, which may have been replaced meanwhile."""
        current = self._journal.get(item.key)
        if current is None:
            return
        if current.get("seq", 0) == item.seq:
            self._waiting.pop(item.key, None)
        if item.key in self._waiting or self._is_open(item):
            self._journal.put(f"shipped/{item.key}", item.seq)
        else:
            self._forget(item.key)

    def reject(self, item: Item, why: str) -> None:
        """Keep a rejected item as a file, and do not send it again."""
        log.warning("%s was rejected: %s; kept in %s", item.key, why, self._rejected.directory)
        text = json.dumps({"why": why, "item": item.wire})
        try:
            self._rejected.keep(item.key, text)
        except OSError as error:
            log.error("%s cannot be kept: %s; it was %s", item.key, error, text)  # noqa: TRY400
        self.shipped(item)

    def _is_open(self, item: Item) -> bool:
        if item.kind == "events":
            return False
        if item.kind == "runs":
            return item.wire.get("end_s") is None
        return item.wire["segment"] in self._of_open

    # Limits

    def gives_way(self, key: str) -> bool:
        """Return whether a running job's record has this key; on a full disk, it is written last."""
        return key.startswith(("record/", "host/")) and self._waiting.get(key) is not True

    def keep_within_limits(self) -> None:
        """Drop the oldest urgent items while a limit is exceeded; keep the few records of running jobs."""
        journal = self._journal
        if journal.size_bytes <= self._max_bytes and journal.bytes_in_memory <= self._max_bytes_in_memory:
            return
        dropped = 0
        for key in [key for key, urgent in self._waiting.items() if urgent]:
            too_much_in_memory = journal.bytes_in_memory > self._max_bytes_in_memory
            if not too_much_in_memory and journal.size_bytes <= self._max_bytes:
                break
            if not too_much_in_memory or journal.in_memory(key):
                self._drop(key)
                dropped += 1
        if dropped:
            log.error("the spool is full: the %d oldest waiting records and events were dropped", dropped)

    def take_dropped(self) -> int:
        """Return the number of items dropped since the last call, or 0 until there is space again."""
        if self._journal.failing or self._journal.size_bytes > _SPACE_FRACTION * self._max_bytes:
            return 0
        dropped = self._journal.get(_DROPPED)
        self._journal.remove(_DROPPED)
        return dropped if is_count(dropped) else 0

    def _drop(self, key: str) -> None:
        self._waiting.pop(key, None)
        self._forget(key)
        dropped = self._journal.get(_DROPPED)
        self._journal.put(_DROPPED, dropped + 1 if is_count(dropped) else 1)

    def _shipped_seq(self, key: str) -> int:
        seq = self._journal.get(f"shipped/{key}")
        return seq if is_count(seq) else -1

    def _forget(self, key: str) -> None:
        self._journal.remove(key)
        self._journal.remove(f"shipped/{key}")
