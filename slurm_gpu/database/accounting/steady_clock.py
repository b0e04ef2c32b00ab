"""When watches of a device were, by a clock that nobody sets: what they tell of the wall clock may lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.wire import Host, Record


@dataclass(frozen=True, slots=True)
class WatchSpan:
    """From `begin_s` to `end_s`, in seconds since the least first_s of those that it lies among."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Its seconds."""
        return self.end_s - self.begin_s

    def overlap_s(self, other: WatchSpan) -> float:
        """Seconds in common; negative: the seconds between them."""
        return min(self.end_s, other.end_s) - max(self.begin_s, other.begin_s)


def spans(records: Sequence[Record | Host]) -> list[WatchSpan]:
    """When each of these records of one run on one device (or host records on one node) was, in their order.

    Those of one boot lie to each other as seconds since boot say, wherever the wall clock was set between
    them or in them. One that does not tell these (of an older slurm-gpud) is where its wall clock says.
    """
    # Epoch seconds would take from a fraction what a float has room for.
    since_s = min((record.first_s for record in records), default=0)
    first: dict[str, tuple[float, str, int]] = {}
    for record in records:
        if record.uptime_s is not None:
            begun = record.uptime_s, record.segment, record.first_s
            first[record.boot_id] = min(begun, first.get(record.boot_id, begun))

    def span(record: Record | Host) -> WatchSpan:
        # A host record counts its own seconds in whole ones.
        allocated_s = (
            record.allocated_s if isinstance(record, Record) else float(record.last_s - record.first_s)
        )
        if record.uptime_s is None:
            return WatchSpan(record.first_s - since_s, record.last_s - since_s)
        uptime_s, _, first_s = first[record.boot_id]
        begin_s = first_s - since_s + (record.uptime_s - uptime_s)
        return WatchSpan(begin_s, begin_s + allocated_s)

    return [span(record) for record in records]


def allocated_s(records: Sequence[Record]) -> float:
    """For how long a run held one device as its node saw it: from the prolog to the end of the last watch.

    A job does not let go while slurm-gpud is down, so the time between two watches counts. An empty watch was
    begun after the end, which its node learnt later: it says nothing of how long the device was held.
    """
    records = [record for record in records if record.allocated_s > 0] or records
    begun = [(span.begin_s, record) for span, record in zip(spans(records), records, strict=True)]
    begin_s, first = min(begun, key=lambda item: (item[0], item[1].segment))
    unwatched_s = max(0, first.first_s - first.prolog_s)
    # Seconds held are finer than the wall clock's.
    return unwatched_s + max(start_s - begin_s + record.allocated_s for start_s, record in begun)
