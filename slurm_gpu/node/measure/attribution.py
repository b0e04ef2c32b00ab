"""Attribute a device's utilisation to jobs, after hooks and the driver's process samples have arrived.

Times in seconds are Clock.monotonic(). Times in µs are wall-clock times, like the driver's timestamps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.node.gpu.reading import Reading, ReadRequest
from slurm_gpu.node.measure.shares import (
    PROCESSES_LATE_S,
    AllocatedSpan,
    JobSamples,
    allocated_part,
    alone,
    device_during,
    shared,
)
from slurm_gpu.node.measure.tally import DeviceTally
from slurm_gpu.node.measure.utilization import SAMPLE_MAX_S, UtilizationSpan, UtilizationSpans

# Samples are counted after this delay, so that the epilog of a job that ended earlier can arrive first.
LAG_S = 0.04


@dataclass(slots=True)
class Others:
    """The times until which jobs other than the known ones may have used a device.

    Until `unobserved_until_s`, the device was, or may have been, allocated to a job that was not observed.
    Until `unknown_jobs_until_s`, unknown jobs may share it.
    """

    unobserved_until_s: float = -math.inf
    unknown_jobs_until_s: float = -math.inf


class Attribution:
    """Attributes the use of one device; pass the samples of its ring after `after_us` to `take`.

    The driver's timestamps before `placed_since_s` cannot be converted to Clock.monotonic(). `settled_s` is
    the time up to which all utilisation has been attributed.
    """

    def __init__(self, clock: Clock, others: Others, placed_since_s: float = -math.inf) -> None:
        self._clock, self._others, self._placed_since_s = clock, others, placed_since_s
        self._spans = UtilizationSpans(clock, 0.0)
        self._waiting: deque[UtilizationSpan] = deque()
        self._job_samples = JobSamples(0)
        self.settled_s = 0.0

    def begin(self, start_s: float) -> None:
        """Start a new allocation of the device at `start_s`, which the driver's ring usually still covers."""
        placed = start_s - SAMPLE_MAX_S >= self._placed_since_s
        since_s = start_s if placed else self._clock.monotonic()
        was_set = not placed or self._spans.was_set_back()
        self._spans = UtilizationSpans(self._clock, since_s, was_set=was_set)
        self._waiting.clear()
        self._job_samples = JobSamples(self._to_us(since_s))
        self.settled_s = start_s

    def resume(self, now_s: float) -> None:
        """Resume after an outage of the device, which counts as unmeasured time."""
        # After a short outage, the driver's ring includes samples that were already counted.
        counted_s, was_set = self._spans.covered_s, self._spans.was_set_back()
        self._spans = UtilizationSpans(self._clock, now_s, was_set=was_set)
        self._spans.covered_s = max(counted_s, self._spans.covered_s)
        self._waiting.clear()
        self._job_samples.begin(self._to_us(now_s))

    def interrupt(self) -> None:
        """See UtilizationSpans."""
        self._spans.interrupt()

    @property
    def has_ring(self) -> bool:
        """See UtilizationSpans."""
        return self._spans.has_ring

    @property
    def after_us(self) -> int:
        """Return the time after which samples are to be read from the device's ring."""
        return self._spans.after_us

    def processes_after_us(self, now_s: float) -> int:
        """Return the time after which samples are to be read from the ring of process samples."""
        return self._job_samples.after_us(self._to_us(now_s))

    def may_have_unknown_jobs(self) -> bool:
        """Return whether unknown jobs may have contributed to pending samples."""
        return self._spans.covered_s < self._others.unknown_jobs_until_s + PROCESSES_LATE_S

    def clock_was_set(self, at_s: float) -> bool:
        """Return whether the wall clock has been set since the last sample; call this before each `take`."""
        was_set = self._spans.clock_was_set(at_s)
        if was_set:
            self._job_samples.begin(self._to_us(at_s))
        return was_set

    def take(
        self,
        asked: ReadRequest,
        asked_s: float,
        reading: Reading,
        gap_s: float,
        tallies: Sequence[DeviceTally],
        owner_of: Callable[[int], int | None],
        *,
        deadline: bool,
    ) -> None:
        """Add a reading with a ring, and the pending spans, to the tallies of the jobs on the device.

        `owner_of` returns the job of a process. If `deadline` is true, all pending spans are counted now.
        """
        spans = self._spans.take(reading, gap_s, detailed=asked.detailed, to_the_end=deadline)
        if spans and spans[0].start_s >= self._others.unobserved_until_s:
            self._waiting.extend(spans)
        else:
            self._waiting.extend(span for span in map(self._watched, spans) if span is not None)
        if asked.process_ring_after_us is not None:
            now_s = self._clock.monotonic()
            offset_s = wall_ahead_s(self._clock)
            self._job_samples.take(reading.process_ring, owner_of, offset_s, self._to_us(now_s))
        self._count_alone(asked_s - LAG_S, tallies)
        while self._waiting:
            span = self._waiting[0]
            parts = {}
            for tally in tallies:
                part = allocated_part(span, tally.start_s, tally.end_s)
                if part is not None:
                    parts[tally] = part
            unknown_jobs = span.start_s < self._others.unknown_jobs_until_s
            several = len(parts) > 1 or unknown_jobs
            # All hooks that ran before the request have been read.
            late = asked_s - span.end_s >= LAG_S
            if not (late and (not several or self._job_samples.reach(span, asked_s))) and not deadline:
                return
            self._waiting.popleft()
            self._count(span, parts, unknown_jobs=unknown_jobs)
            self.settled_s = span.end_s
        self.settled_s = self._spans.covered_s

    def _watched(self, span: UtilizationSpan) -> UtilizationSpan | None:
        """Return the part of the span after the last unobserved use of the device."""
        unobserved_until_s = self._others.unobserved_until_s
        if span.start_s >= unobserved_until_s:
            return span
        if span.end_s <= unobserved_until_s:
            return None
        return span._replace(start_s=unobserved_until_s)

    def _count_alone(self, until_s: float, tallies: Sequence[DeviceTally]) -> None:
        """Count pending spans up to `until_s` if only one job has had the device since they started."""
        if len(tallies) != 1 or not self._waiting:
            return
        tally = tallies[0]
        if tally.end_s is not None or self._waiting[0].start_s < max(
            tally.start_s, self._others.unknown_jobs_until_s
        ):
            return
        spans = []
        while self._waiting and self._waiting[0].end_s <= until_s:
            spans.append(self._waiting.popleft())
        tally.utilization_alone(spans)

    def _count(
        self, span: UtilizationSpan, parts: Mapping[DeviceTally, AllocatedSpan], *, unknown_jobs: bool
    ) -> None:
        if len(parts) == 1 and not unknown_jobs:
            ((tally, part),) = parts.items()
            value = alone(span, part)
            tally.utilization(part.start_s, part.end_s, value, value)
        elif parts:
            # If a job was requeued and restarted at once, its two runs share the usage of its processes.
            by_job: dict[int, AllocatedSpan] = {}
            for tally, part in parts.items():
                before = by_job.get(tally.key.job_id)
                by_job[tally.key.job_id] = part if before is None else before.longer_by(part)
            of_job = shared(span, by_job, self._job_samples.known, unknown_jobs=unknown_jobs)
            own = {tally: of_job[tally.key.job_id] for tally in parts}
            for tally, part in parts.items():
                device = device_during(span, part, parts, own)
                tally.utilization(part.start_s, part.end_s, own[tally], device)
            self._job_samples.forget(span)

    def _to_us(self, at_s: float) -> int:
        return round((at_s + wall_ahead_s(self._clock)) * 1_000_000)
