"""Watches one device on behalf of the segments that hold it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu.clock import Clock
from slurm_gpu.node.gpu.reading import Failure, Reading, ReadRequest
from slurm_gpu.node.measure import own_sample as ownlook
from slurm_gpu.node.measure.attribution import LAG_S, Attribution, Others
from slurm_gpu.node.measure.sampling_interval import SamplingPace
from slurm_gpu.node.measure.shares import PROCESSES_LATE_S
from slurm_gpu.node.measure.tally import DeviceSample, DeviceTally
from slurm_gpu.node.process.cgroup import JobOwner
from slurm_gpu.node.process.process_jobs import ProcessJobs

# For so long a segment that has ended waits for the driver's last samples of its time.
SETTLE_S = 1.2
# Where the device cannot be asked (its reader restarts), when to settle without it.
ABANDON_S = 30.0


@dataclass(slots=True)
class _PendingSample:
    """A look that is not counted yet."""

    look: DeviceSample
    gap_s: float
    detail_gap_s: float


@dataclass(slots=True)
class _WatchedSegment:
    tally: DeviceTally
    settle_by_s: float | None = None
    # Did any look since the last detailed one find others? What counters grew by since then is theirs too.
    shared: bool = False
    seen: deque[_PendingSample] = field(default_factory=deque)

    def count(self, until_s: float) -> None:
        """Count the looks up to then."""
        while self.seen and self.seen[0].look.reading.at_s <= until_s:
            seen = self.seen.popleft()
            self.tally.add_sample(seen.look, seen.gap_s, seen.detail_gap_s)


class DeviceWatch:
    """One device, from the first segment to the last: `request` says what to read, `take` counts it.

    Times are Clock.monotonic() seconds; `interval_s` is that between looks (pace.py). `failure` is why the
    device says nothing any more, until `recover`; that time is a gap. So is what was before `placed_since_s`:
    the wall clock, by which the driver stamps, may have been set by then.
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
        # Could it not be asked since the last look, or the last one at details?
        self._no_memory_before = self._no_details_before = False
        # Since when nobody held the device, as far as this process knows; and GPM's last word.
        self._free_since_s = -math.inf
        self._activity_s: float | None = None

    @property
    def held(self) -> bool:
        """Does any segment still need this device to be looked at?"""
        return bool(self._segments)

    def hold(self, tally: DeviceTally) -> None:
        """A segment begins; the driver's ring still tells what happened since its start."""
        if not self._segments:
            tally.free_since(self._free_since_s)
            self._attribution.begin(tally.start_s)
        self._hold([*self._segments, _WatchedSegment(tally)])
        self.request_detail()

    def mark_unobserved_until(self, until_s: float) -> None:
        """Up to then somebody held the device, or may have, whom nobody watched: no segment was alone."""
        self._others.unobserved_until_s = max(self._others.unobserved_until_s, until_s)
        self._free_since_s = max(self._free_since_s, until_s)

    def set_unknown_jobs_until(self, at_s: float) -> None:
        """Up to then jobs may hold the device of which nothing is known: no segment counts as alone.

        Each has what its own processes do, as on a shared device.
        """
        self._others.unknown_jobs_until_s = at_s

    def recover(self, now_s: float) -> None:
        """The device answers again; what happened in between is a gap."""
        self.failure = None
        for segment in self._segments:
            segment.count(now_s)
            segment.tally.forget()
        self._attribution.resume(now_s)
        self.request_detail()

    def release(self, tally: DeviceTally, now_s: float) -> None:
        """The segment has ended, its `end_s` is set: look once more, and wait for the last samples."""
        for segment in self._segments:
            if segment.tally is tally:
                segment.settle_by_s = now_s + SETTLE_S
        self._hold(self._segments)
        self.request_detail()

    def drop(self, tally: DeviceTally) -> None:
        """The segment ended long ago: nothing that is seen from now on is its own."""
        self._hold([segment for segment in self._segments if segment.tally is not tally])
        self._free_since_s = self._clock.monotonic()

    def settled(self, now_s: float) -> Sequence[DeviceTally]:
        """Segments that have ended and of which nothing more will be learnt; they hold no longer."""
        done = [segment for segment in self._segments if self._is_settled(segment)]
        for segment in done:
            segment.count(now_s)
            assert segment.tally.end_s is not None
            self._free_since_s = max(self._free_since_s, segment.tally.end_s)
        if done:
            self._hold([segment for segment in self._segments if segment not in done])
        return [segment.tally for segment in done]

    def _hold(self, segments: list[_WatchedSegment]) -> None:
        self._segments = segments
        self._pace.set_youngest(max((segment.tally.start_s for segment in segments), default=None))
        self._pace.settling = any(segment.settle_by_s is not None for segment in segments)

    def _is_settled(self, segment: _WatchedSegment) -> bool:
        if segment.settle_by_s is None or segment.tally.end_s is None:
            return False
        end_s = segment.tally.end_s
        told = self._attribution.settled_s >= end_s and (
            self._activity_s is None or self._activity_s >= end_s
        )
        if self.failure is not None or told:
            return True
        # Time is up only after a look that knew so and counted what there was.
        if self._sampled_s is not None and self._sampled_s >= segment.settle_by_s:
            return True
        return self._pace.asked_s is not None and self._pace.asked_s >= segment.settle_by_s + ABANDON_S

    def request_detail(self) -> None:
        """Make the next look due now, and a detailed one."""
        self._pace.request_detail()

    def next_sample_s(self, now_s: float) -> float:
        """When to look again."""
        return self._pace.next_sample_s(now_s)

    def is_due(self, now_s: float) -> bool:
        """Look now?"""
        return self._pace.is_due(now_s)

    def request(self, now_s: float) -> ReadRequest | None:
        """What to read of the device now; None if it fails or nobody holds it."""
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
        """Count what came back; `jobs` are the open jobs of this node."""
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
        """Is a look at its memory, at each full interval, all that is due until somebody comes or goes?"""
        return (
            self.failure is None
            and len(self._segments) == 1
            and self._pace.is_steady()
            and self._attribution.has_ring
            and now_s >= self._others.unknown_jobs_until_s + PROCESSES_LATE_S
        )

    def take_followed(self, reading: Reading, jobs: Mapping[int, JobOwner]) -> None:
        """Take in a look at its memory that was made unasked.

        It is counted with the next one: an epilog that ended a job before it may have yet to be seen.
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
        """It could not be asked this time: what came before says nothing of the time until it answers."""
        self._pace.skip()
        self._interrupt()

    def fail(self, failure: Failure) -> None:
        """The device said that it will say nothing more."""
        self.failure = failure
        self._interrupt()

    def _interrupt(self) -> None:
        self._no_memory_before = self._no_details_before = True
        self._attribution.interrupt()
        self.request_detail()

    def _settles_by(self, now_s: float) -> bool:
        """Is this the last look for any segment?"""
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
        owners: ownlook.Owners | None = None
        unknown_jobs = self._had_unknown_jobs() and self._may_run_others(reading, jobs)
        if reading.processes is None:
            pass
        elif several:
            owners = ownlook.Owners(reading.processes, lambda pid: self._owner_of(pid, jobs))
        else:
            # The next job may come within the sample in which this one goes.
            self._processes.look_up((process.pid for process in reading.processes), jobs)
        whole: DeviceSample | None = None
        for segment in self._segments:
            tally = segment.tally
            shares = unknown_jobs or self._shares(tally, asked_s)
            segment.shared = segment.shared or shares
            if several and shares:
                own = None if owners is None else owners.of(tally.key.job_id)
                look = ownlook.part(reading, own, detailed=asked.detailed)
            else:
                if whole is None:
                    whole = ownlook.whole(reading, detailed=asked.detailed, free_after=not several)
                look = replace(whole, alone=False) if segment.shared else whole
            if asked.detailed:
                segment.shared = False
            segment.seen.append(_PendingSample(look, gap_s, detail_gap_s))

    def _had_unknown_jobs(self) -> bool:
        """May it have had any since the last look?"""
        return (-math.inf if self._sampled_s is None else self._sampled_s) < self._others.unknown_jobs_until_s

    def _may_run_others(self, reading: Reading, jobs: Mapping[int, JobOwner]) -> bool:
        """May anyone but the segments have processes on the device?"""
        known = {segment.tally.key.job_id for segment in self._segments}
        processes = reading.processes
        return processes is None or any(
            self._owner_of(process.pid, jobs) not in known for process in processes
        )

    def _owner_of(self, pid: int, jobs: Mapping[int, JobOwner]) -> int | None:
        return self._processes.owner_of(pid, jobs, [segment.tally.key.job_id for segment in self._segments])

    def _shares(self, tally: DeviceTally, now_s: float) -> bool:
        """Did anyone else hold the device at any time since the last look?"""
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
