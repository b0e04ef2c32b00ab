"""Watches one device on behalf of the segments that hold it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.clock import Clock
from slurm_gpu.node.cgroup import JobOwner, ProcessJobs
from slurm_gpu.node.devices import Device, DeviceLostError, Memory, Process
from slurm_gpu.node.shares import Held, JobSample, alone, held_part, shared
from slurm_gpu.node.tally import Look, Tally
from slurm_gpu.node.utilization import SAMPLE_MAX_S, Span, UtilizationReader

log = logging.getLogger(__name__)

# A young segment is looked at often: of a job of 3 s, one sampling interval is a third. Memory that comes or
# goes between two looks is placed in their middle, so it is wrong by half a share of the time at most.
YOUNG_SHARE = 0.005
YOUNGEST_S = 0.02
# Everything else needs a look per so many looks at memory, but one per interval at least.
DETAIL_SHARE = 5
# A pause of so many looks, and at least this long, is a gap.
GAP_LOOKS = 5
GAP_S = 0.5
# What was seen is counted only after the epilog that makes it void had time to be seen.
LAG_S = 0.04
# The processes' samples of a moment arrive at most so much later than the device's.
PROCESSES_LATE_S = 1.0
# For so long a segment that has ended waits for the driver's last samples of its time.
SETTLE_S = 1.2


@dataclass(slots=True)
class _Seen:
    """A look that is not counted yet."""

    at_s: float
    look: Look
    gap_s: float
    detail_gap_s: float


@dataclass(slots=True)
class _Holder:
    tally: Tally
    settle_by_s: float | None = None
    seen: deque[_Seen] = field(default_factory=deque)

    def count(self, until_s: float) -> None:
        """Count the looks up to then."""
        while self.seen and self.seen[0].at_s <= until_s:
            seen = self.seen.popleft()
            self.tally.look(seen.at_s, seen.look, seen.gap_s, seen.detail_gap_s)


class DeviceWatch:
    """One device, from the first holder to the last.

    Times are Clock.monotonic() seconds; `interval_s` is the sampling interval of grown-up segments.
    """

    def __init__(self, device: Device, clock: Clock, processes: ProcessJobs, interval_s: float) -> None:
        self.device = device
        self.lost: DeviceLostError | None = None
        self._clock, self._processes, self._interval_s = clock, processes, interval_s
        self._holders: list[_Holder] = []
        self._reader: UtilizationReader | None = None
        self._waiting: deque[Span] = deque()
        self._settled_s = 0.0
        self._job_samples: list[JobSample] | None = []
        self._process_us = 0
        self._looked_s: float | None = None
        self._detailed_s: float | None = None

    @property
    def held(self) -> bool:
        """Does any segment still need this device to be looked at?"""
        return bool(self._holders)

    def hold(self, tally: Tally) -> None:
        """A segment begins; the driver's ring still tells what happened since its start."""
        if not self._holders:
            self._reader = UtilizationReader(self.device, self._clock, tally.start_s)
            self._waiting.clear()
            self._settled_s = tally.start_s
            self._job_samples = []
            self._process_us = self._to_us(tally.start_s)
        self._holders.append(_Holder(tally))
        self.look_thoroughly()

    def recover(self, device: Device, now_s: float) -> None:
        """The lost GPU answers again, through a new handle; what happened in between is a gap."""
        self.device, self.lost = device, None
        self._reader = UtilizationReader(device, self._clock, now_s)
        self._waiting.clear()
        self._process_us = self._to_us(now_s)
        self.look_thoroughly()

    def release(self, tally: Tally, now_s: float) -> None:
        """The segment has ended, its `end_s` is set: look once more, and wait for the last samples."""
        for holder in self._holders:
            if holder.tally is tally:
                holder.settle_by_s = now_s + SETTLE_S
        self.look_thoroughly()

    def settled(self, now_s: float) -> Sequence[Tally]:
        """Segments that have ended and of which nothing more will be learnt; they hold no longer."""
        done = [holder for holder in self._holders if self._is_settled(holder)]
        for holder in done:
            holder.count(now_s)
            self._holders.remove(holder)
        return [holder.tally for holder in done]

    def _is_settled(self, holder: _Holder) -> bool:
        if holder.settle_by_s is None or holder.tally.end_s is None:
            return False
        # Time is up only after a look that knew so and counted what there was.
        time_is_up = self._looked_s is not None and self._looked_s >= holder.settle_by_s
        return self.lost is not None or self._settled_s >= holder.tally.end_s or time_is_up

    def look_thoroughly(self) -> None:
        """Make the next look due now, and a detailed one."""
        self._detailed_s = None

    def next_look_s(self, now_s: float) -> float:
        """When to look again; looks at full intervals fall together on all devices."""
        if self._looked_s is None or self._detailed_s is None:
            return now_s
        step = self._step_s(now_s)
        if step < self._interval_s:
            return self._looked_s + step
        return (self._looked_s // step + 1) * step

    def _step_s(self, now_s: float) -> float:
        if any(h.settle_by_s is not None for h in self._holders):
            return min(self._interval_s, YOUNGEST_S)
        age_s = min((now_s - h.tally.start_s for h in self._holders), default=0.0)
        return min(self._interval_s, max(YOUNGEST_S, YOUNG_SHARE * age_s))

    def look(self, now_s: float, jobs: Mapping[int, JobOwner]) -> None:
        """Read the device and count what it says; a lost GPU is left in `lost`, its time is a gap."""
        if self.lost is not None or not self._holders:
            return
        step = self._step_s(now_s)
        gap_s = max(GAP_S, GAP_LOOKS * step)
        detail_s = min(self._interval_s, DETAIL_SHARE * step)
        detail_gap_s = max(gap_s, GAP_LOOKS * self._interval_s)
        detailed = self._detailed_s is None or now_s - self._detailed_s >= 0.99 * detail_s
        assert self._reader is not None
        settling = any(holder.settle_by_s is not None for holder in self._holders)
        try:
            if detailed or settling or not self._reader.has_ring:
                self._look_at_utilization(self._reader, now_s, detail_gap_s, jobs)
            self._look_at_state(now_s, gap_s, detail_gap_s, jobs, detailed)
        except DeviceLostError as error:
            self.lost = error
        self._looked_s = now_s
        if detailed:
            self._detailed_s = now_s

    def _look_at_utilization(
        self, reader: UtilizationReader, now_s: float, gap_s: float, jobs: Mapping[int, JobOwner]
    ) -> None:
        deadline = any(h.settle_by_s is not None and now_s >= h.settle_by_s for h in self._holders)
        self._waiting.extend(reader.read(now_s, gap_s, to_the_end=deadline))
        if len(self._holders) > 1:
            self._read_job_samples(jobs)
        while self._waiting:
            span = self._waiting[0]
            parts = {}
            for holder in self._holders:
                part = held_part(span, holder.tally.start_s, holder.tally.end_s)
                if part is not None:
                    parts[holder.tally] = part
            late = now_s - span.end_s >= LAG_S and (len(parts) < 2 or self._samples_reach(span, now_s))
            if not late and not deadline:
                return
            self._waiting.popleft()
            self._count(span, parts)
            self._settled_s = span.end_s
        self._settled_s = reader.covered_s

    def _samples_reach(self, span: Span, now_s: float) -> bool:
        """Have the processes' samples of that time arrived, as far as they ever will?"""
        if self._job_samples is None or now_s - span.end_s > PROCESSES_LATE_S:
            return True
        return bool(self._job_samples) and self._job_samples[-1].at_s >= span.end_s - 1e-3

    def _count(self, span: Span, parts: Mapping[Tally, Held]) -> None:
        if len(parts) == 1:
            ((tally, part),) = parts.items()
            value = alone(span, part)
            tally.utilization(part.seconds, value, value)
        elif parts:
            by_job = {tally.key.job_id: part for tally, part in parts.items()}
            own = shared(span, by_job, self._job_samples)
            for tally, part in parts.items():
                tally.utilization(part.seconds, own[tally.key.job_id], span.percent)
            if self._job_samples is not None:
                oldest = span.end_s - 2 * SAMPLE_MAX_S
                self._job_samples = [s for s in self._job_samples if s.at_s > oldest]

    def _read_job_samples(self, jobs: Mapping[int, JobOwner]) -> None:
        # Where the wall clock was set back, the driver's next stamps lie before the last one seen.
        self._process_us = min(self._process_us, self._to_us(self._clock.monotonic()))
        samples = self.device.process_samples(self._process_us)
        if samples is None:
            self._job_samples = None
            return
        if self._job_samples is None:
            self._job_samples = []
        # One difference of the clocks for all, so that the samples of one tick keep one stamp.
        offset_s = self._clock.wall() - self._clock.monotonic()
        for sample in sorted(samples, key=lambda s: s.at_us):
            self._process_us = max(self._process_us, sample.at_us)
            job = self._processes.job_of(sample.pid, jobs)
            if job is not None:
                self._job_samples.append(JobSample(sample.at_us / 1e6 - offset_s, job, sample.percent))

    def _look_at_state(
        self,
        now_s: float,
        gap_s: float,
        detail_gap_s: float,
        jobs: Mapping[int, JobOwner],
        detailed: bool,
    ) -> None:
        memory = self.device.memory()
        used = None if memory is None else memory.used
        several = len(self._holders) > 1
        processes = self.device.processes() if several or detailed else None
        rates = self.device.utilization() if detailed else None
        power_w = self.device.power_w() if detailed else None
        temperature_c = self.device.temperature_c() if detailed else None
        sm_clock_mhz = self.device.sm_clock_mhz() if detailed else None
        energy_j = self.device.energy_j() if detailed else None
        by_job = self._by_job(processes, jobs) if several else None
        if processes is not None and not several:
            # The next job may come within the sample in which this one goes.
            self._processes.meet((process.pid for process in processes), jobs)
        for holder in self._holders:
            tally = holder.tally
            shares = several and self._shares(tally, now_s)
            if shares and by_job is not None:
                own: Sequence[Process] | None = by_job.get(tally.key.job_id, ())
            else:
                own = None if shares else processes
            look = Look(
                memory_used=_process_memory(own, memory) if shares else used,
                memory_total=None if memory is None else memory.total,
                detailed=detailed,
                memory_util_pct=None if rates is None else rates.memory,
                # What the whole device draws belongs to no one of those who share it.
                power_w=None if shares else power_w,
                temperature_c=temperature_c,
                sm_clock_mhz=sm_clock_mhz,
                energy_j=None if shares else energy_j,
                processes=None if own is None else len(own),
            )
            holder.seen.append(_Seen(now_s, look, gap_s, detail_gap_s))
            holder.count(now_s - LAG_S)

    def _shares(self, tally: Tally, now_s: float) -> bool:
        """Did anyone else hold the device at any time since the last look?"""
        since_s = max(tally.start_s, self._looked_s if self._looked_s is not None else tally.start_s)
        until_s = now_s if tally.end_s is None else tally.end_s
        for holder in self._holders:
            other = holder.tally
            if (
                other is not tally
                and other.start_s < until_s
                and (other.end_s is None or other.end_s > since_s)
            ):
                return True
        return False

    def _by_job(
        self, processes: Sequence[Process] | None, jobs: Mapping[int, JobOwner]
    ) -> Mapping[int, Sequence[Process]] | None:
        if processes is None:
            return None
        by_job: dict[int, list[Process]] = {}
        for process in processes:
            job = self._processes.job_of(process.pid, jobs)
            if job is not None:
                by_job.setdefault(job, []).append(process)
        return by_job

    def _to_us(self, at_s: float) -> int:
        return round((at_s + self._clock.wall() - self._clock.monotonic()) * 1_000_000)


def _process_memory(processes: Sequence[Process] | None, memory: Memory | None) -> int | None:
    """Bytes of these processes together, never more than the device has in use; None if unknown."""
    if processes is None or memory is None:
        return None
    used = [process.used for process in processes]
    known = [u for u in used if u is not None]
    return min(memory.used, sum(known)) if len(known) == len(used) else None
