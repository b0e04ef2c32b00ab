"""Order the watches of a device by the time since boot, because the wall clock may be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.wire import Host, Record


@dataclass(frozen=True, slots=True)
class WatchSpan:
    """A span from `begin_s` to `end_s`, in seconds since the earliest first_s of its group."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Return the length in seconds."""
        return self.end_s - self.begin_s

    def overlap_s(self, other: WatchSpan) -> float:
        """Return the overlap in seconds; a negative value is the gap between the spans."""
        return min(self.end_s, other.end_s) - max(self.begin_s, other.begin_s)


def spans(records: Sequence[Record | Host]) -> list[WatchSpan]:
    """Return the span of each record, in the order of `records`.

    The records belong to one run on one device, or are host records of one run on one node. Spans of the same
    boot are placed by their seconds since boot, even if the wall clock was set in between. A record from an
    older slurm-gpud, which lacks these seconds, is placed by its wall-clock times.
    """
    # Times are relative to the first one, because epoch seconds leave a float less precision for fractions.
    since_s = min((record.first_s for record in records), default=0)
    first: dict[str, tuple[float, str, int]] = {}
    for record in records:
        if record.uptime_s is not None:
            begun = record.uptime_s, record.segment, record.first_s
            first[record.boot_id] = min(begun, first.get(record.boot_id, begun))

    def span(record: Record | Host) -> WatchSpan:
        # A host record has whole seconds only.
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
    """Return how long one device was allocated to a run, according to its node.

    The result covers the time from the prolog to the end of the last watch. A job keeps its devices while
    slurm-gpud is down, so the time between two watches counts. An empty watch does not count: it began after
    the end of the job, before the node was notified of this end.
    """
    records = [record for record in records if record.allocated_s > 0] or records
    begun = [(span.begin_s, record) for span, record in zip(spans(records), records, strict=True)]
    begin_s, first = min(begun, key=lambda item: (item[0], item[1].segment))
    unwatched_s = max(0, first.first_s - first.prolog_s)
    # allocated_s is more precise than the wall clock.
    return unwatched_s + max(start_s - begin_s + record.allocated_s for start_s, record in begun)
