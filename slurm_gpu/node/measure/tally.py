"""Compute the cumulative record of one segment on one device in O(1) memory.

All times are Clock.monotonic() seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from slurm_gpu.node.gpu.reading import DeviceProperties, Reading
from slurm_gpu.node.measure.details import LINKS, DetailCollector
from slurm_gpu.node.measure.intervals import Gauge, Interval
from slurm_gpu.node.measure.statistics import HistogramSum, MeanSum
from slurm_gpu.node.measure.timeline import TimelineSum
from slurm_gpu.node.measure.utilization import UtilizationSpan
from slurm_gpu.node.measure.window import WindowRecorder
from slurm_gpu.wire import Record

_MIB = 2**20
# On a busy node, an epilog's file may appear this much later than its timestamp; the usage counted in the
# meantime is subtracted.
TAKEN_BACK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKey:
    """The identifiers of a segment and its run, as reported by the prolog."""

    cluster: str
    job_id: int
    restart: int
    prolog_s: int
    node: str
    boot_id: str
    segment: str


class _Utilization(NamedTuple):
    """A job's own utilisation in percent, or None if unknown, and the device's utilisation."""

    start_s: float
    end_s: float
    own: float | None
    device: float


class _Memory(NamedTuple):
    """The used memory in bytes, and as a fraction of the device's memory."""

    start_s: float
    end_s: float
    used: float
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One sample of a device, prepared for one segment.

    `memory_used`, in bytes, and the number of `processes` are the segment's own, or None if unknown. `alone`
    is true if no other segment has had the device since the last sample. `free_after` is true if no segment
    has had the device since this segment's end. If `detailed` is false, only memory was read.
    """

    reading: Reading
    memory_used: int | None
    processes: int | None = None
    alone: bool = True
    free_after: bool = True
    detailed: bool = False


class DeviceTally:
    """The statistics of one segment on one device, from `start_s` to `end_s` (None while it continues).

    `start_wall_s` is the wall-clock time at `start_s`; later wall-clock times are computed from both. The
    timeline contains values as fractions of the maxima in `facts`; series without a maximum are left out.
    """

    def __init__(
        self,
        key: SegmentKey,
        device: str,
        start_s: float,
        start_wall_s: float,
        facts: DeviceProperties | None = None,
    ) -> None:
        self.key, self.device = key, device
        self._named = asdict(key)
        self.start_s, self.start_wall_s = start_s, start_wall_s
        self._end_s: float | None = None
        self.granted_mgpu: int | None = None
        self._seq = 0
        self._timeline = TimelineSum(start_s, start_wall_s)
        self._window = WindowRecorder(start_s, start_wall_s)
        self._util = HistogramSum()
        self._device_util = MeanSum()
        self._memory_interval, self._detail_interval = Interval(start_s), Interval(start_s)
        # Whether the device reports utilisation, or None until the first detailed reading.
        self._has_utilization: bool | None = None
        self._memory, self._memory_part, self._memory_hist = Gauge(), MeanSum(), HistogramSum()
        self._details = DetailCollector(facts, self._timeline, self._window)
        self._suspended_s, self._is_suspended = 0.0, False
        # The time of the last suspension report, if any.
        self._reported_s: float | None = None
        # Suspended intervals up to `_reported_s`; utilisation that arrives late for these intervals does not
        # count.
        self._pauses: deque[tuple[float, float]] = deque()
        # The usage in the last TAKEN_BACK_S, which may have to be subtracted.
        self._utilizations: deque[_Utilization] = deque()
        self._memories: deque[_Memory] = deque()

    @property
    def end_s(self) -> float | None:
        """Return when the segment ended, or None while it continues.

        If the end is set late, the utilisation and memory that were counted after it are subtracted.
        """
        return self._end_s

    @end_s.setter
    def end_s(self, at_s: float | None) -> None:
        self._end_s = at_s
        if at_s is not None:
            self._take_back_utilization(at_s)
            self._take_back_memory(at_s)

    def utilization(self, begin_s: float, end_s: float, own: float | None, device: float) -> None:
        """Add an interval with its utilisation in percent; `own` is None if the job's share is unknown.

        The share does not count while the job is suspended. Calls must be made in chronological order.
        """
        for start_s, stop_s, running in self._by_suspension(begin_s, end_s):
            share = own if running else None
            self._count_utilization(start_s, stop_s, share, device)
            self._window.utilization(start_s, stop_s, share, device)
            self._utilizations.append(_Utilization(start_s, stop_s, share, device))
        _forget(self._utilizations, end_s - TAKEN_BACK_S)

    def _count_utilization(self, start_s: float, end_s: float, own: float | None, device: float) -> None:
        if own is not None:
            self._util.add(end_s - start_s, own)
            self._timeline.add_one(start_s, end_s, "util", own / 100)
        self._device_util.add(end_s - start_s, device, device, device)

    def can_take_back(self, since_s: float) -> bool:
        """Return whether all usage since `since_s` can be subtracted."""
        kept = [entries[-1].end_s for entries in (self._utilizations, self._memories) if entries]
        return max(kept, default=since_s) - since_s <= TAKEN_BACK_S

    def _take_back_utilization(self, since_s: float) -> None:
        """Subtract utilisation after `since_s`; a sample that spans it counts in full as earlier usage."""
        before = None
        while self._utilizations and self._utilizations[-1].end_s > since_s:
            start_s, end_s, own, device = before = self._utilizations.pop()
            if own is not None:
                self._util.take_back(end_s - start_s, own)
                self._timeline.take_back(start_s, end_s, "util", own / 100)
            self._device_util.take_back(end_s - start_s, device)
        if before is not None and before.start_s < since_s:
            denser = (before.end_s - before.start_s) / (since_s - before.start_s)
            own = None if before.own is None else min(100.0, before.own * denser)
            self._count_utilization(before.start_s, since_s, own, min(100.0, before.device * denser))

    def utilization_alone(self, spans: Sequence[UtilizationSpan]) -> None:
        """Add spans, in chronological order, in which only the job used the device (the common case)."""
        if self._pauses or self._is_suspended:
            for start_s, end_s, percent in spans:
                self.utilization(start_s, end_s, percent, percent)
            return
        self._util.add_all(spans)
        self._device_util.add_all(spans)
        self._timeline.add_all("util", spans, unit=100)
        for start_s, end_s, percent in spans:
            self._window.utilization(start_s, end_s, percent, percent)
        since_s = spans[-1].end_s - TAKEN_BACK_S if spans else self.start_s
        self._utilizations.extend(
            _Utilization(start_s, end_s, percent, percent)
            for start_s, end_s, percent in spans
            if end_s > since_s
        )
        _forget(self._utilizations, since_s)

    def _by_suspension(self, begin_s: float, end_s: float) -> Sequence[tuple[float, float, bool]]:
        """Split an interval at suspensions; return each part's start and end, and whether the job ran."""
        if not self._pauses and not self._is_suspended:
            return ((begin_s, end_s, True),)
        while self._pauses and self._pauses[0][1] <= begin_s:
            self._pauses.popleft()
        pauses = list(self._pauses)
        if self._is_suspended and self._reported_s is not None:
            pauses.append((self._reported_s, end_s))
        parts = []
        for pause_s, resumed_s in pauses:
            pause_s, resumed_s = max(begin_s, pause_s), min(end_s, resumed_s)
            if pause_s >= resumed_s:
                continue
            if begin_s < pause_s:
                parts.append((begin_s, pause_s, True))
            parts.append((pause_s, resumed_s, False))
            begin_s = resumed_s
        if begin_s < end_s:
            parts.append((begin_s, end_s, True))
        return parts

    def free_since(self, at_s: float) -> None:
        """Set the time from which the device was unallocated until the segment's start."""
        self._details.free_since(at_s)

    def add_sample(self, sample: DeviceSample, gap_s: float, detail_gap_s: float) -> None:
        """Add a sample; the time since the last one is unmeasured if it is longer than the given gap."""
        self._add_memory(sample, gap_s)
        if sample.detailed:
            interval, reading = self._detail_interval, sample.reading
            interval.step(reading.at_s, self.end_s, detail_gap_s)
            has_utilization = reading.ring is not None or reading.util_pct is not None
            self._has_utilization = has_utilization or self._has_utilization is True
            processes = None if self._is_suspended else sample.processes
            self._details.see(
                reading,
                processes,
                interval,
                alone=sample.alone,
                free_after=sample.free_after,
            )

    def _add_memory(self, sample: DeviceSample, gap_s: float) -> None:
        interval, memory = self._memory_interval, sample.reading.memory
        interval.step(sample.reading.at_s, self.end_s, gap_s)
        total = 0 if memory is None else memory.total
        covered = self._memory.see(sample.memory_used if total else None, interval)
        if covered is None:
            return
        begin_s, end_s, mean = covered.begin_s, covered.end_s, covered.mean
        part, low, high = (min(1.0, used / total) for used in (mean, covered.low, covered.high))
        self._memory_part.add(covered.seconds, part, low, high)
        self._memory_hist.add(covered.seconds, 100 * part)
        self._timeline.add_one(begin_s, end_s, "mem_used", part)
        self._window.memory(begin_s, end_s, {"mem_used_mib": mean / _MIB, "mem_used_frac": part})
        self._memories.append(_Memory(begin_s, end_s, mean, part))
        _forget(self._memories, end_s - TAKEN_BACK_S)

    def _take_back_memory(self, since_s: float) -> None:
        while self._memories and self._memories[-1].end_s > since_s:
            start_s, end_s, used, part = self._memories.pop()
            start_s = max(start_s, since_s)
            self._memory.sum.take_back(end_s - start_s, used)
            self._memory_part.take_back(end_s - start_s, part)
            self._memory_hist.take_back(end_s - start_s, 100 * part)
            self._timeline.take_back(start_s, end_s, "mem_used", part)

    def suspension(self, at_s: float, *, suspended: bool) -> None:
        """Set whether the job is suspended from `at_s` until the next call."""
        if self._reported_s is None:
            self._reported_s, self._is_suspended = self.start_s, suspended
        if suspended or self._is_suspended:
            # If the state changed since the last report, the time of the change is unknown.
            last = self._pauses.pop() if self._pauses and self._pauses[-1][1] == self._reported_s else None
            self._pauses.append((self._reported_s if last is None else last[0], at_s))
        self._suspended_s = self._suspended_until(at_s)
        self._reported_s, self._is_suspended = at_s, suspended

    def _suspended_until(self, at_s: float) -> float:
        if not self._is_suspended or self._reported_s is None:
            return self._suspended_s
        end_s = at_s if self.end_s is None else min(at_s, self.end_s)
        return self._suspended_s + max(0.0, end_s - self._reported_s)

    def forget(self) -> None:
        """Treat the counters as reset, because the device was unavailable."""
        self._details.forget()

    def window(self) -> dict[str, Any] | None:
        """Return the window in wire format, or None if nothing has been measured yet."""
        return self._window.to_wire(self.key.job_id, self.key.segment, self.device)

    def record(self, now_s: float, *, final: bool = False) -> Record:
        """Return the record as of `now_s`, with the next sequence number."""
        self._seq += 1
        stop_s = now_s if self.end_s is None else min(now_s, self.end_s)
        allocated_s = max(0.0, stop_s - self.start_s)
        util, memory_hist = self._util.value, self._memory_hist.value
        details = self._details.fields()
        links = {link: [details[f"{link}_rx_bytes"], details[f"{link}_tx_bytes"]] for link in LINKS}
        unmeasured = [link for link, totals in links.items() if totals == [None, None]]
        # Without utilisation, sampled_s comes from memory, which is also sampled during suspensions.
        suspended_s = self._suspended_until(stop_s)
        return Record(
            **self._named,
            device=self.device,
            seq=self._seq,
            final=final,
            first_s=int(self.start_wall_s),
            last_s=int(self.start_wall_s + allocated_s),
            allocated_s=round(allocated_s, 6),
            uptime_s=round(self.start_s, 6),
            sampled_s=min(
                _seconds(memory_hist if self._has_utilization is False else util),
                round(max(0.0, allocated_s - suspended_s), 6),
            ),
            suspended_s=None if self._reported_s is None else round(suspended_s, 3),
            granted_mgpu=self.granted_mgpu,
            util_hist_ms=util,
            mem_hist_ms=memory_hist,
            device_util_pct=self._device_util.value(),
            mem_used_mib=self._memory.sum.value(_MIB),
            mem_used_frac=self._memory_part.value(),
            timeline=self._timeline.timeline(leave_out=unmeasured),
            **details,
        )


def _seconds(histogram: Mapping[int, int] | None) -> float:
    return 0.0 if histogram is None else sum(histogram.values()) / 1000


def _forget(counted: deque[_Utilization] | deque[_Memory], until_s: float) -> None:
    while counted and counted[0].end_s <= until_s:
        counted.popleft()
