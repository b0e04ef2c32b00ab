"""Separate the items of a shipment that may be stored from the rejected ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.accounting.writer import Watch
from slurm_gpu.database.live.rejections import Rejected
from slurm_gpu.database.storage.fast_decoder import DecodedRecord
from slurm_gpu.wire import DeviceFacts, Event, Host, HostRun, Live, Record, Window

T = TypeVar("T")

# Key of an item in a batch of shipments: the position of the shipment, and the item's index in it.
Key = tuple[int, int]
# The kinds of items that are stored in the database.
STORED = ("records", "hosts", "devices", "events", "runs", "windows")


@dataclass(slots=True, kw_only=True)
class AdmittedItems:
    """The items of one shipment that may be stored, by index, and its rejected items.

    `at_s` is the wall-clock time at which the shipment arrived, and `queue` is slurmctld's queue at that
    time.
    """

    node: str
    at_s: int
    queue: QueueState | None
    rejected: list[Rejected]
    records: dict[int, Record | DecodedRecord] = field(default_factory=dict)
    hosts: dict[int, Host] = field(default_factory=dict)
    devices: dict[int, DeviceFacts] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    runs: dict[int, HostRun] = field(default_factory=dict)
    windows: dict[int, Window] = field(default_factory=dict)
    live: Live | None = None
    uids: dict[str, int | None] = field(default_factory=dict)
    """The uid on this host of each user in `runs`; None for an unknown user."""

    @property
    def n_to_store(self) -> int:
        """Return the number of items to store."""
        return sum(len(getattr(self, kind)) for kind in STORED)

    def segments(self) -> Set[str]:
        """Return the segments to which the items belong.

        Other shipments with these segments must not be stored in the same transaction.
        """
        watches: tuple[Iterable[Watch | Window], ...] = (self.records.values(), self.hosts.values())
        return {item.segment for items in (*watches, self.windows.values()) for item in items}

    def reject(self, kind: str, reasons: Mapping[int, str]) -> None:
        """Move items of a kind, given by index, to the list of rejected items."""
        for index, why in reasons.items():
            del getattr(self, kind)[index]
            self.rejected.append(Rejected(index, why, kind))

    def reject_all(self, why: str) -> None:
        """Reject all items that are still to be stored."""
        for kind in STORED:
            self.reject(kind, dict.fromkeys(getattr(self, kind), why))

    def halves(self) -> tuple[AdmittedItems, AdmittedItems]:
        """Split the items to store into two halves, which share the list of rejected items."""
        items = [(kind, index) for kind in STORED for index in getattr(self, kind)]
        middle = len(items) // 2
        return self._part(items[:middle]), self._part(items[middle:])

    def _part(self, items: Iterable[tuple[str, int]]) -> AdmittedItems:
        part = AdmittedItems(
            node=self.node, at_s=self.at_s, queue=self.queue, rejected=self.rejected, uids=self.uids
        )
        for kind, index in items:
            getattr(part, kind)[index] = getattr(self, kind)[index]
        return part


def of_all(some: Sequence[AdmittedItems], get: Callable[[AdmittedItems], Mapping[int, T]]) -> dict[Key, T]:
    """Return the items of one kind from several shipments, by shipment and index."""
    return {
        (place, index): item for place, admitted in enumerate(some) for index, item in get(admitted).items()
    }


def reject(some: Sequence[AdmittedItems], kind: str, reasons: Mapping[Key, str]) -> None:
    """Reject items of one kind in several shipments."""
    for (place, index), why in reasons.items():
        some[place].reject(kind, {index: why})


def not_its(item: Watch | Window, node: str) -> str:
    """Return the reason for rejecting an item whose segment belongs to another job or node."""
    return f"segment {item.segment} does not belong to job {item.job_id} on {node}"
