"""Split a device's utilisation among its jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from slurm_gpu.node.gpu.reading import ProcessSample
from slurm_gpu.node.measure.utilization import SAMPLE_MAX_S, UtilizationSpan

Holder = TypeVar("Holder")

# Process samples arrive at most this much later than the samples of the device.
PROCESSES_LATE_S = 1.0
# Utilisation up to this percentage may come from processes that are each too small to be reported.
_UNSEEN_PERCENT = 5.0
# The timestamps of one driver tick may differ slightly between its two rings, and between readings.
_SAME_S = 1e-3


class AllocatedSpan(NamedTuple):
    """The part of a span in which a job had the device."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.end_s - self.start_s

    def longer_by(self, other: AllocatedSpan) -> AllocatedSpan:
        """Return a span whose duration is the sum of both durations; the spans must not overlap."""
        start_s = min(self.start_s, other.start_s)
        return AllocatedSpan(start_s, start_s + self.seconds + other.seconds)


def allocated_part(span: UtilizationSpan, start_s: float, end_s: float | None) -> AllocatedSpan | None:
    """Return the part of the span between `start_s` and `end_s`, or None if there is none."""
    start = max(span.start_s, start_s)
    end = span.end_s if end_s is None else min(span.end_s, end_s)
    return AllocatedSpan(start, end) if end > start else None


@dataclass(frozen=True, slots=True)
class JobSample:
    """The percentage of a device that a process used up to `at_s` (Clock.monotonic()).

    `job_id` is the process's job, NO_JOB, or None if unknown. If `is_mean` is true, the percentage is the
    mean over a longer time, during which the device's use may have changed.
    """

    at_s: float
    job_id: int | None
    percent: float
    is_mean: bool = False


class JobSamples:
    """The recent usage of one device by jobs, from the driver's ring of process samples.

    `known` is None if the device has no such ring.
    """

    def __init__(self, after_us: int) -> None:
        self.known: list[JobSample] | None = []
        self._last_us = after_us
        # Whether a reading of the ring has ever listed a process twice.
        self._has_ticks = False
        # Timestamps that were ahead of the clock at the first reading, because the clock had been set back.
        self._from_before: set[int] = set()
        self._is_first = True

    def begin(self, after_us: int) -> None:
        """From now on, read only samples of the ring after `after_us`; keep the known samples."""
        self._last_us, self._is_first = after_us, True
        self._from_before.clear()

    def after_us(self, now_us: int) -> int:
        """Return the wall-clock time in µs after which samples are to be read from the ring."""
        # If the wall clock was set back, new timestamps are earlier than the last one seen.
        self._last_us = min(self._last_us, now_us)
        return self._last_us

    def take(
        self,
        ring: Sequence[ProcessSample] | None,
        owner_of: Callable[[int], int | None],
        offset_s: float,
        now_us: int,
    ) -> None:
        """Add new samples; `offset_s` is the wall-clock time minus Clock.monotonic().

        `owner_of` is ProcessJobs.owner_of. Samples after `now_us` (wall clock) were taken before the clock
        was set back. The same offset applies to all samples, so that samples of one driver tick keep the same
        timestamp.

        Some drivers reportedly list each process once, with the time of its last work and its mean percentage
        since the last read. These samples get the same timestamp, because they are means over the same time.
        Such means show only the proportion in which jobs used the device.
        """
        if ring is None:
            self.known = None
            return
        if self.known is None:
            self.known = []
        self._has_ticks = self._has_ticks or len({sample.pid for sample in ring}) < len(ring)
        is_mean = not self._has_ticks
        if is_mean and ring:
            newest_us = max(sample.at_us for sample in ring)
            ring = [sample._replace(at_us=newest_us) for sample in ring]
        for sample in sorted(ring, key=lambda s: s.at_us):
            if sample.at_us > now_us and self._is_first:
                self._from_before.add(sample.at_us)
            if sample.at_us > now_us or sample.at_us in self._from_before:
                continue
            self._last_us = max(self._last_us, sample.at_us)
            self.known.append(
                JobSample(sample.at_us / 1e6 - offset_s, owner_of(sample.pid), sample.percent, is_mean)
            )
        if ring:
            self._is_first = False

    def reach(self, span: UtilizationSpan, now_s: float) -> bool:
        """Return whether all samples of the span have arrived."""
        if self.known is None or now_s - span.end_s > PROCESSES_LATE_S:
            return True
        return bool(self.known) and self.known[-1].at_s >= span.end_s - _SAME_S

    def forget(self, before: UtilizationSpan) -> None:
        """Drop the samples that are not required for any span after this one."""
        if self.known is not None:
            oldest = before.end_s - 2 * SAMPLE_MAX_S
            self.known = [s for s in self.known if s.at_s > oldest]


def alone(span: UtilizationSpan, part: AllocatedSpan) -> float:
    """Return the percentage during `part`, if no other job had the device during the span.

    The driver's samples do not begin when a job starts. An unallocated device is idle, so all activity in the
    span belongs to the allocated part.
    """
    return min(100.0, span.percent * (span.end_s - span.start_s) / part.seconds)


def shared(
    span: UtilizationSpan,
    parts: Mapping[int, AllocatedSpan],
    samples: Sequence[JobSample] | None,
    *,
    unknown_jobs: bool = False,
) -> Mapping[int, float | None]:
    """Return each job's percentage during its part, from process samples; it is None if unknown.

    The percentage is the mean of the samples inside the span. If there are none, the first sample after the
    span is used, because it also covers the time before. A job without samples was idle, unless there are no
    samples at all although the device was busy.

    If the job of a process is unknown and only one job has the device, the process counts for that job. If
    there are several jobs, or `unknown_jobs` are possible, a process whose job is unknown makes all shares
    unknown. The sum over all jobs never exceeds the utilisation of the device. Means over a longer time
    divide the device's usage among all processes in proportion to these means.
    """
    only = next(iter(parts)) if len(parts) == 1 and not unknown_jobs else None
    if samples is None:
        apart = not unknown_jobs and _one_after_another(parts)
        return dict.fromkeys(parts, span.percent if apart else None)
    stamps = sorted({s.at_s for s in samples if span.start_s < s.at_s - _SAME_S <= span.end_s})
    if not stamps:
        stamps = sorted({s.at_s for s in samples if s.at_s - _SAME_S > span.end_s})[:1]
    if not stamps and span.percent > _UNSEEN_PERCENT:
        return dict.fromkeys(parts, None)
    taken = dict.fromkeys(parts, 0.0)
    others, proportional = 0.0, False
    for sample in samples:
        if sample.at_s not in stamps or sample.percent == 0:
            continue
        job = only if sample.job_id is None else sample.job_id
        if job is None:
            return dict.fromkeys(parts, None)
        proportional = proportional or sample.is_mean
        if job in taken:
            taken[job] += sample.percent / len(stamps)
        else:
            others += sample.percent / len(stamps)
    seconds = span.end_s - span.start_s
    total = sum(taken.values()) + (others if proportional else 0.0)
    fit = span.percent / total if total > 0 else 1.0
    if not proportional:
        fit = min(1.0, fit)
    return {job: min(100.0, taken[job] * fit * seconds / part.seconds) for job, part in parts.items()}


def device_during(
    span: UtilizationSpan,
    part: AllocatedSpan,
    parts: Mapping[Holder, AllocatedSpan],
    own: Mapping[Holder, float | None],
) -> float:
    """Return the device's percentage during `part` of a span, given each job's own percentage.

    The activity of other processes is assumed to be constant over the span.
    """
    if part.start_s <= span.start_s and part.end_s >= span.end_s:
        return span.percent
    rest, busy = span.percent * (span.end_s - span.start_s), 0.0
    for holder, other in parts.items():
        percent = own[holder]
        if percent is None:
            return span.percent
        rest -= percent * other.seconds
        busy += percent * max(0.0, min(part.end_s, other.end_s) - max(part.start_s, other.start_s))
    return min(100.0, busy / part.seconds + max(0.0, rest) / (span.end_s - span.start_s))


def _one_after_another(parts: Mapping[int, AllocatedSpan]) -> bool:
    ordered = sorted(parts.values(), key=lambda part: part.start_s)
    return all(a.end_s <= b.start_s for a, b in itertools.pairwise(ordered))
