"""Manage the segments that are being observed, and save their records."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu.errors import RecordError
from slurm_gpu.node.allocation.hooks import HookEvent
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.gpu.reading import DeviceProperties
from slurm_gpu.node.measure.tally import DeviceTally, SegmentKey
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import Record

# Checkpoints at these ages are kept permanently, since a segment may end before its first regular one.
YOUNG_S = (1.0, 2.0, 4.0, 8.0)
# All checkpoints of the last three minutes are kept, since slurm-gpudbd waits two minutes before it reports
# an end. An older checkpoint is kept longer if its number is divisible by a higher power of two: three
# checkpoints remain for each power.
_ALL_OF = 18
_KEPT = 6
_WINDOW_BITS, _MEMORY_LEVEL = 12, 4


class Checkpoints:
    """The checkpoints of one segment on one device, which become sparser with age.

    If the epilog is lost, Slurm reports the end only after slurm-gpud has counted later samples, in which
    another job may have used the device. In that case, the last checkpoint before the end is used. If
    checkpoints are made every 10 s for a day, about 50 of them are kept, 2 KB each.
    """

    def __init__(self) -> None:
        self._added = 0
        self._kept: list[tuple[int, float, bytes]] = []
        self._young: list[tuple[int, float, bytes]] = []

    def add(self, at_s: float, record: bytes) -> None:
        """Add the record at `at_s` (Clock.monotonic()) as JSON; call this at regular intervals."""
        self._added += 1
        self._kept.append((self._added, at_s, _packed(record)))
        self._kept = [
            kept for kept in self._kept if self._added - kept[0] < max(_ALL_OF, _KEPT * (kept[0] & -kept[0]))
        ]

    def wants_young(self, age_s: float) -> bool:
        """Return whether a segment of this age requires another early checkpoint."""
        return len(self._young) < len(YOUNG_S) and age_s >= YOUNG_S[len(self._young)]

    def add_young(self, at_s: float, record: bytes) -> None:
        """Add an early checkpoint; see `wants_young`."""
        self._young.append((0, at_s, _packed(record)))

    def at(self, moment_s: float) -> Record | None:
        """Return the record of the last checkpoint up to `moment_s`, or None if there is none."""
        until = [kept for kept in (*self._young, *self._kept) if kept[1] <= moment_s]
        packed = max(until, key=lambda kept: kept[1], default=None)
        return None if packed is None else Record.from_wire(json.loads(zlib.decompress(packed[2])), {})

    def __len__(self) -> int:
        return len(self._kept)


def _packed(record: bytes) -> bytes:
    # Allocating zlib's default of 256 KiB would take longer than compressing a record.
    packer = zlib.compressobj(level=1, wbits=_WINDOW_BITS, memLevel=_MEMORY_LEVEL)
    return packer.compress(record) + packer.flush()


log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenSegment:
    """An open or ending allocation that is being observed.

    `tallies` and `histories` contain the tally and the checkpoints of each known device. `unsettled` contains
    the devices whose samples are still pending. `epilog` is the event that ended the segment; it is kept
    until the final records are on disk.
    """

    allocation: Allocation
    tallies: dict[str, DeviceTally] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    histories: dict[str, Checkpoints] = field(default_factory=dict)
    ending: bool = False
    epilog: HookEvent | None = None

    def can_end_at(self, at_s: float) -> bool:
        """Return whether the segment had started by `at_s` and all usage since `at_s` can be subtracted."""
        begun = self.allocation.ended_before(at_s) is self.allocation
        return begun and all(tally.can_take_back(at_s) for tally in self.tallies.values())


class SegmentRegistry:
    """The segments that this process observes, and their records in the spool."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._segments: dict[str, OpenSegment] = {}
        self._granted: Mapping[tuple[int, int], int] = {}

    def __iter__(self) -> Iterator[OpenSegment]:
        return iter(list(self._segments.values()))

    def get(self, allocation: Allocation) -> OpenSegment | None:
        """Return the segment of the allocation, or None if there is none."""
        return self._segments.get(allocation.key.segment)

    def of(self, allocation: Allocation) -> OpenSegment:
        """Return the segment of the allocation; create it, or update its allocation."""
        segment = self._segments.setdefault(allocation.key.segment, OpenSegment(allocation))
        segment.allocation = allocation
        return segment

    def begin(self, segment: OpenSegment, facts: DeviceProperties, now_s: float) -> DeviceTally:
        """Start sampling a device of the segment and return its tally.

        The first record is saved immediately. If slurm-gpud is killed, only this record shows the segment's
        start and minimum duration.
        """
        segment.tallies[facts.uuid] = tally = self._tally(segment.allocation, facts.uuid, facts)
        segment.histories[facts.uuid] = Checkpoints()
        segment.unsettled.add(facts.uuid)
        self._spool.save_record(tally.record(now_s))
        return tally

    def grant(self, granted_mgpu: Mapping[tuple[int, int], int]) -> None:
        """Set the granted shares of the GPUs, in 1/1000 of a GPU, by run (job ID, restart count)."""
        self._granted = granted_mgpu
        for segment in self._segments.values():
            for tally in segment.tallies.values():
                tally.granted_mgpu = granted_mgpu.get(_run(tally.key), tally.granted_mgpu)

    def checkpoint(self, now_s: float) -> None:
        """Save the records of all devices, and keep them as checkpoints."""
        for segment in self._segments.values():
            for device in segment.unsettled:
                record = self._spool.save_record(segment.tallies[device].record(now_s))
                segment.histories[device].add(now_s, record)

    def remember_young(self, now_s: float) -> None:
        """Add early checkpoints for segments that may end before their first regular checkpoint."""
        for segment in self._segments.values():
            age_s = now_s - segment.allocation.start_s
            for device in segment.unsettled if age_s <= YOUNG_S[-1] + 1 else ():
                if not segment.ending and segment.histories[device].wants_young(age_s):
                    record = self._spool.save_record(segment.tallies[device].record(now_s))
                    segment.histories[device].add_young(now_s, record)

    def settle(self, tally: DeviceTally, now_s: float) -> None:
        """Save the final record of a device."""
        self._spool.save_record(tally.record(now_s, final=True))
        self._segments[tally.key.segment].unsettled.discard(tally.device)

    def settled(self) -> Sequence[OpenSegment]:
        """Return the ended segments without pending samples."""
        return [s for s in self._segments.values() if s.ending and not s.unsettled]

    def close_settled(self, segment: OpenSegment) -> None:
        """Close a settled segment, and save records of devices that were never sampled."""
        end_s = next(iter(segment.tallies.values())).end_s
        assert end_s is not None
        for device in segment.allocation.device_names:
            if device not in segment.tallies:
                self._save_unsampled(segment.allocation, device, end_s)
        self._drop(segment.allocation)

    def close_unwatched(self, allocation: Allocation, end_s: float) -> None:
        """Close an allocation that this process has not sampled, using the last record in the spool."""
        for device in allocation.device_names:
            last = self._last_record(allocation.key.segment, device)
            if last is None:
                self._save_unsampled(allocation, device, end_s)
                continue
            # If the epilog's file was late, the segment was started and sampled after the job's end.
            began_later = last.uptime_s is not None and last.uptime_s > round(end_s, 6)
            before = self._unsampled(allocation, device) if began_later else last
            self._spool.save_record(_closed(before, allocation, end_s, last.seq + 1))
        self._drop(allocation)

    def continue_segment(self, allocation: Allocation, now_s: float, wall_s: float) -> Allocation:
        """Continue an allocation of an earlier process in a new segment."""
        recorded_until_s = self._recorded_until_s(allocation)
        self._spool.drop_allocation(allocation)
        return allocation.continued(now_s, wall_s, recorded_until_s)

    def _recorded_until_s(self, allocation: Allocation) -> float:
        """Return the time (Clock.monotonic()) at which the allocation's records in the spool end."""
        ends_s = [allocation.start_s if allocation.recorded_until_s is None else allocation.recorded_until_s]
        for device in allocation.device_names:
            last = self._last_record(allocation.key.segment, device)
            if last is not None:
                ends_s.append(allocation.start_s + last.allocated_s)
        return max(ends_s)

    def _last_record(self, segment: str, device: str) -> Record | None:
        try:
            return self._spool.last_record(segment, device)
        except RecordError as error:
            log.error("the record of %s on %s in the spool cannot be read: %s", segment, device, error)  # noqa: TRY400
            return None

    def close_late(self, allocation: Allocation, end_s: float, now_s: float) -> None:
        """Close an allocation that ended a while ago, using the last checkpoint before its end."""
        segment = self.of(allocation)
        for device in allocation.device_names:
            if device not in segment.tallies:
                self._save_unsampled(allocation, device, end_s)
                continue
            newest = segment.tallies[device].record(now_s)
            before = segment.histories[device].at(end_s)
            if before is None:
                before = self._unsampled(allocation, device)
            before = replace(before, granted_mgpu=newest.granted_mgpu)
            self._spool.save_record(_closed(before, allocation, end_s, newest.seq))
        self._drop(allocation)

    def _drop(self, allocation: Allocation) -> None:
        self._segments.pop(allocation.key.segment, None)
        self._spool.drop_allocation(allocation)

    def _save_unsampled(self, allocation: Allocation, device: str, end_s: float) -> None:
        self._spool.save_record(_closed(self._unsampled(allocation, device), allocation, end_s, seq=1))

    def _unsampled(self, allocation: Allocation, device: str) -> Record:
        return self._tally(allocation, device).record(allocation.start_s)

    def _tally(
        self, allocation: Allocation, device: str, facts: DeviceProperties | None = None
    ) -> DeviceTally:
        tally = DeviceTally(allocation.key, device, allocation.start_s, allocation.start_wall_s, facts)
        tally.granted_mgpu = self._granted.get(_run(allocation.key))
        return tally


def _run(key: SegmentKey) -> tuple[int, int]:
    return key.job_id, key.restart


def _closed(last: Record, allocation: Allocation, end_s: float, seq: int) -> Record:
    """Return the final version of the record `last` of an allocation that ended at `end_s`."""
    allocated_s = max(last.allocated_s, round(end_s - allocation.start_s, 6))
    last_s = max(last.last_s, int(allocation.start_wall_s + allocated_s))
    return replace(last, seq=seq, final=True, allocated_s=allocated_s, last_s=last_s)
