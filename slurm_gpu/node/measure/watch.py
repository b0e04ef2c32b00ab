"""Sample one device for the segments on it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu.clock import Clock
from slurm_gpu.node.gpu.reading import Failure, Reading, ReadRequest
from slurm_gpu.node.measure import own_sample
from slurm_gpu.node.measure.attribution import LAG_S, Attribution, Others
from slurm_gpu.node.measure.sampling_interval import SamplingPace
from slurm_gpu.node.measure.shares import PROCESSES_LATE_S
from slurm_gpu.node.measure.tally import DeviceSample, DeviceTally
from slurm_gpu.node.process.cgroup import JobOwner
from slurm_gpu.node.process.process_jobs import ProcessJobs

# Maximum wait of an ended segment for the driver's last samples.
SETTLE_S = 1.2
# Maximum wait of an ended segment for a device that cannot be read while the reader restarts.
ABANDON_S = 30.0


@dataclass(slots=True)
class _PendingSample:
    """A sample that has not been counted yet."""

    sample: DeviceSample
    gap_s: float
    detail_gap_s: float


@dataclass(slots=True)
class _WatchedSegment:
    tally: DeviceTally
    settle_by_s: float | None = None
    # Whether any sample since the last detailed one found other jobs, which contributed to the counters.
    shared: bool = False
    seen: deque[_PendingSample] = field(default_factory=deque)

    def count(self, until_s: float) -> None:
        """Count the samples that were taken up to `until_s`."""
        while self.seen and self.seen[0].sample.reading.at_s <= until_s:
            seen = self.seen.popleft()
            self.tally.add_sample(seen.sample, seen.gap_s, seen.detail_gap_s)


class DeviceWatch:
    """Samples one device while it has segments: `request` returns a request, and `take` counts its reading.

    Times are Clock.monotonic() seconds; `interval_s` is the sampling interval. `failure` is the reason for an
    outage, which lasts until `recover` is called and is unmeasured. Utilisation before `placed_since_s` is
    also unmeasured, because the wall clock may have been set after the driver's timestamps were made.
    """

    def __init__(
        self,
        uuid: str,
        clock: Clock,
        processes: ProcessJobs,
        interval_s: float,
        placed_since_s: float = -math.inf,
    ) -> None:
        self.uuid = uuid
        self.failure: Failure | None = None
        self._clock, self._processes = clock, processes
        self._pace = SamplingPace(interval_s)
        self._segments: list[_WatchedSegment] = []
        self._others = Others()
        self._attribution = Attribution(clock, self._others, placed_since_s)
        self._asked: ReadRequest | None = None
        self._sampled_s: float | None = None
        self._read_s = -math.inf
        # Whether a read has failed since the last sample, or since the last detailed one.
        self._no_memory_before = self._no_details_before = False
        # The start of the time for which the device is known to be unallocated, and the time of the last GPM
        # reading.
        self._free_since_s = -math.inf
        self._activity_s: float | None = None

    @property
    def is_allocated(self) -> bool:
        """Return whether any segment requires samples of the device."""
        return bool(self._segments)

    def start_segment(self, tally: DeviceTally) -> None:
        """Start a segment; the driver's ring still covers the time since the segment's start."""
        if not self._segments:
            tally.free_since(self._free_since_s)
            self._attribution.begin(tally.start_s)
        self._set_segments([*self._segments, _WatchedSegment(tally)])
        self.request_detail()

    def mark_unobserved_until(self, until_s: float) -> None:
        """Mark the time until `until_s` as possibly shared with an unobserved job."""
        self._others.unobserved_until_s = max(self._others.unobserved_until_s, until_s)
        self._free_since_s = max(self._free_since_s, until_s)

    def set_unknown_jobs_until(self, at_s: float) -> None:
        """Assume that unknown jobs use the device until `at_s`, so that no segment counts as alone.

        For each segment, only the use of its own processes counts, as on a shared device.
        """
        self._others.unknown_jobs_until_s = at_s

    def recover(self, now_s: float) -> None:
        """Resume after an outage of the device, which counts as unmeasured time."""
        self.failure = None
        for segment in self._segments:
            segment.count(now_s)
            segment.tally.forget()
        self._attribution.resume(now_s)
        self.request_detail()

    def end_segment(self, tally: DeviceTally, now_s: float) -> None:
        """End a segment whose `end_s` is set: take one more sample and wait for the driver's last samples."""
        for segment in self._segments:
            if segment.tally is tally:
                segment.settle_by_s = now_s + SETTLE_S
        self._set_segments(self._segments)
        self.request_detail()

    def drop_segment(self, tally: DeviceTally) -> None:
        """Remove a segment that ended a while ago, without taking further samples."""
        self._set_segments([segment for segment in self._segments if segment.tally is not tally])
        self._free_since_s = self._clock.monotonic()

    def settled(self, now_s: float) -> Sequence[DeviceTally]:
        """Remove ended segments whose last samples have been counted; return their tallies."""
        done = [segment for segment in self._segments if self._is_settled(segment)]
        for segment in done:
            segment.count(now_s)
            assert segment.tally.end_s is not None
            self._free_since_s = max(self._free_since_s, segment.tally.end_s)
        if done:
            self._set_segments([segment for segment in self._segments if segment not in done])
        return [segment.tally for segment in done]

    def _set_segments(self, segments: list[_WatchedSegment]) -> None:
        self._segments = segments
        self._pace.set_youngest(max((segment.tally.start_s for segment in segments), default=None))
        self._pace.settling = any(segment.settle_by_s is not None for segment in segments)

    def _is_settled(self, segment: _WatchedSegment) -> bool:
        if segment.settle_by_s is None or segment.tally.end_s is None:
            return False
        end_s = segment.tally.end_s
        is_complete = self._attribution.settled_s >= end_s and (
            self._activity_s is None or self._activity_s >= end_s
        )
        if self.failure is not None or is_complete:
            return True
        # The wait is over only after a final sample that counted everything pending.
        if self._sampled_s is not None and self._sampled_s >= segment.settle_by_s:
            return True
        return self._pace.asked_s is not None and self._pace.asked_s >= segment.settle_by_s + ABANDON_S

    def request_detail(self) -> None:
        """Make a detailed sample due now."""
        self._pace.request_detail()

    def next_sample_s(self, now_s: float) -> float:
        """Return when the next sample is due."""
        return self._pace.next_sample_s(now_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether a sample is due."""
        return self._pace.is_due(now_s)

    def request(self, now_s: float) -> ReadRequest | None:
        """Return the request for the next reading, or None if the device has failed or has no segments."""
        if self.failure is not None or not self._segments:
            return None
        detailed = self._pace.wants_details(now_s) or self._settles_by(now_s)
        several = len(self._segments) > 1 or self._attribution.may_have_unknown_jobs()
        utilization = detailed or self._pace.settling or not self._attribution.has_ring
        self._pace.ask(now_s)
        self._asked = ReadRequest(
            uuid=self.uuid,
            detailed=detailed,
            processes=several or detailed,
            ring_after_us=self._attribution.after_us if utilization else None,
            process_ring_after_us=(
                self._attribution.processes_after_us(now_s) if utilization and several else None
            ),
        )
        return self._asked

    def take(self, reading: Reading, jobs: Mapping[int, JobOwner]) -> None:
        """Count a reading; `jobs` are the open jobs of this node."""
        asked, asked_s = self._asked, self._pace.asked_s
        assert asked is not None
        assert asked_s is not None
        gap_s, detail_gap_s = self._pace.gap_s, self._pace.detail_gap_s
        clock_was_set = self._attribution.clock_was_set(reading.at_s)
        if clock_was_set:
            reading = reading._replace(
                ring=None if reading.ring is None else (),
                process_ring=None if reading.process_ring is None else (),
            )
        if asked.ring_after_us is not None:
            self._attribution.take(
                asked,
                asked_s,
                reading,
                gap_s if reading.ring is None else detail_gap_s,
                [segment.tally for segment in self._segments],
                lambda pid: self._owner_of(pid, jobs),
                deadline=self._settles_by(asked_s),
            )
        self._see(asked, asked_s, reading, jobs)
        for segment in self._segments:
            segment.count(asked_s - LAG_S)
        if reading.activity is not None:
            self._activity_s = reading.at_s
        self._sampled_s, self._read_s = asked_s, reading.at_s
        if clock_was_set:
            self.request_detail()
        elif asked.detailed:
            self._pace.detailed()

    def is_steady(self, now_s: float) -> bool:
        """Return whether only memory samples at the full interval are due until jobs change."""
        return (
            self.failure is None
            and len(self._segments) == 1
            and self._pace.is_steady()
            and self._attribution.has_ring
            and now_s >= self._others.unknown_jobs_until_s + PROCESSES_LATE_S
        )

    def take_followed(self, reading: Reading, jobs: Mapping[int, JobOwner]) -> None:
        """Take a memory reading that the reader made by itself.

        The reading is counted with the next one, because an epilog that precedes it may not have been read
        yet.
        """
        at_s = reading.at_s
        if not self._segments or self.failure is not None or at_s <= self._read_s:
            return
        self._pace.ask(at_s)
        now_s = self._clock.monotonic()
        if self._attribution.clock_was_set(now_s):
            self.request_detail()
        self._see(ReadRequest(self.uuid), at_s, reading, jobs)
        self._sampled_s = self._read_s = at_s

    def skip(self) -> None:
        """Record that the device could not be read; the time until its next answer is unmeasured."""
        self._pace.skip()
        self._interrupt()

    def fail(self, failure: Failure) -> None:
        """Record a failure of the device."""
        self.failure = failure
        self._interrupt()

    def _interrupt(self) -> None:
        self._no_memory_before = self._no_details_before = True
        self._attribution.interrupt()
        self.request_detail()

    def _settles_by(self, now_s: float) -> bool:
        """Return whether a sample at `now_s` is the last one of a segment."""
        return self._pace.settling and any(
            h.settle_by_s is not None and now_s >= h.settle_by_s for h in self._segments
        )

    def _see(
        self,
        asked: ReadRequest,
        asked_s: float,
        reading: Reading,
        jobs: Mapping[int, JobOwner],
    ) -> None:
        gap_s = 0.0 if self._no_memory_before else self._pace.gap_s
        detail_gap_s = 0.0 if self._no_details_before else self._pace.detail_gap_s
        self._no_memory_before = False
        if asked.detailed:
            self._no_details_before = False
        several = len(self._segments) > 1 or self._had_unknown_jobs()
        owners: own_sample.Owners | None = None
        unknown_jobs = self._had_unknown_jobs() and self._may_run_others(reading, jobs)
        if reading.processes is None:
            pass
        elif several:
            owners = own_sample.Owners(reading.processes, lambda pid: self._owner_of(pid, jobs))
        else:
            # The next job may start in the same driver sample in which this job ends.
            self._processes.look_up((process.pid for process in reading.processes), jobs)
        whole: DeviceSample | None = None
        for segment in self._segments:
            tally = segment.tally
            shares = unknown_jobs or self._shares(tally, asked_s)
            segment.shared = segment.shared or shares
            if several and shares:
                own = None if owners is None else owners.of(tally.key.job_id)
                sample = own_sample.part(reading, own, detailed=asked.detailed)
            else:
                if whole is None:
                    whole = own_sample.whole(reading, detailed=asked.detailed, free_after=not several)
                sample = replace(whole, alone=False) if segment.shared else whole
            if asked.detailed:
                segment.shared = False
            segment.seen.append(_PendingSample(sample, gap_s, detail_gap_s))

    def _had_unknown_jobs(self) -> bool:
        """Return whether unknown jobs were possible at any time since the last sample."""
        return (-math.inf if self._sampled_s is None else self._sampled_s) < self._others.unknown_jobs_until_s

    def _may_run_others(self, reading: Reading, jobs: Mapping[int, JobOwner]) -> bool:
        """Return whether jobs other than the known ones may have processes on the device."""
        known = {segment.tally.key.job_id for segment in self._segments}
        processes = reading.processes
        return processes is None or any(
            self._owner_of(process.pid, jobs) not in known for process in processes
        )

    def _owner_of(self, pid: int, jobs: Mapping[int, JobOwner]) -> int | None:
        return self._processes.owner_of(pid, jobs, [segment.tally.key.job_id for segment in self._segments])

    def _shares(self, tally: DeviceTally, now_s: float) -> bool:
        """Return whether another segment observed the device at any time since the last sample."""
        since_s = max(tally.start_s, self._sampled_s if self._sampled_s is not None else tally.start_s)
        if since_s < self._others.unobserved_until_s:
            return True
        until_s = now_s if tally.end_s is None else tally.end_s
        for segment in self._segments:
            other = segment.tally
            if (
                other is not tally
                and other.start_s < until_s
                and (other.end_s is None or other.end_s > since_s)
            ):
                return True
        return False
