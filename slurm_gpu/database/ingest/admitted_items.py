"""What of a shipment is still to be stored, and what is not."""

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

Key = tuple[int, int]
"""Of an item among several shipments: which of them, and its index there."""
STORED = ("records", "hosts", "devices", "events", "runs", "windows")
"""The kinds that go into the database."""


@dataclass(slots=True, kw_only=True)
class AdmittedItems:
    """The items of one shipment that may be stored, by index, and those that are rejected.

    `queue` is what slurmctld said when it came, at `at_s` (wall clock).
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
    """Uids on this host of the users of `runs`; None if there is no such user."""

    @property
    def n_to_store(self) -> int:
        """How many items there are for the database."""
        return sum(len(getattr(self, kind)) for kind in STORED)

    def segments(self) -> Set[str]:
        """Of all that it tells: what else tells of them has to wait for this."""
        watches: tuple[Iterable[Watch | Window], ...] = (self.records.values(), self.hosts.values())
        return {item.segment for items in (*watches, self.windows.values()) for item in items}

    def reject(self, kind: str, reasons: Mapping[int, str]) -> None:
        """Move items to the rejected ones."""
        for index, why in reasons.items():
            del getattr(self, kind)[index]
            self.rejected.append(Rejected(index, why, kind))

    def reject_all(self, why: str) -> None:
        """Move all that is to be stored to the rejected ones."""
        for kind in STORED:
            self.reject(kind, dict.fromkeys(getattr(self, kind), why))

    def halves(self) -> tuple[AdmittedItems, AdmittedItems]:
        """Two with half of what is to be stored each; what they reject is rejected here as well."""
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
    """The items of one kind of several shipments."""
    return {
        (place, index): item for place, admitted in enumerate(some) for index, item in get(admitted).items()
    }


def reject(some: Sequence[AdmittedItems], kind: str, reasons: Mapping[Key, str]) -> None:
    """Reject items of several shipments."""
    for (place, index), why in reasons.items():
        some[place].reject(kind, {index: why})


def not_its(item: Watch | Window, node: str) -> str:
    """Why an item of another job's or node's segment is rejected."""
    return f"segment {item.segment} is not one of job {item.job_id} on {node}"
