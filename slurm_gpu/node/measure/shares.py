"""Splits a device's utilization among the jobs that hold it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from slurm_gpu.node.gpu.reading import ProcessSample
from slurm_gpu.node.measure.utilization import SAMPLE_MAX_S, UtilizationSpan

Holder = TypeVar("Holder")

# The processes' samples of a moment arrive at most so much later than the device's.
PROCESSES_LATE_S = 1.0
# So much of a device's utilization may be too little of each process to be told of any.
_UNSEEN_PERCENT = 5.0
# The stamps of one driver tick may differ a little between its two rings, and between two readings.
_SAME_S = 1e-3


class AllocatedSpan(NamedTuple):
    """The part of a span in which one holder held the device."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s

    def longer_by(self, other: AllocatedSpan) -> AllocatedSpan:
        """As long as both together, which do not overlap."""
        start_s = min(self.start_s, other.start_s)
        return AllocatedSpan(start_s, start_s + self.seconds + other.seconds)


def allocated_part(span: UtilizationSpan, start_s: float, end_s: float | None) -> AllocatedSpan | None:
    """What [start, end] has of the span, if anything."""
    start = max(span.start_s, start_s)
    end = span.end_s if end_s is None else min(span.end_s, end_s)
    return AllocatedSpan(start, end) if end > start else None


@dataclass(frozen=True, slots=True)
class JobSample:
    """Percent that a process took up to `at_s` (monotonic), and whose it is: NO_JOB's, or None if unknown.

    `is_mean`: it is that of a longer time, over which what the device did may have changed.
    """

    at_s: float
    job_id: int | None
    percent: float
    is_mean: bool = False


class JobSamples:
    """What the jobs on one device did lately, from the driver's ring of processes.

    `known` is None where the device has no such ring.
    """

    def __init__(self, after_us: int) -> None:
        self.known: list[JobSample] | None = []
        self._last_us = after_us
        # Has the ring ever shown a process more than once at a time?
        self._has_ticks = False
        # Stamps that lay ahead of the clock at the first reading: it was set back since they were made.
        self._from_before: set[int] = set()
        self._is_first = True

    def begin(self, after_us: int) -> None:
        """Read on after that time; what is known stays."""
        self._last_us, self._is_first = after_us, True
        self._from_before.clear()

    def after_us(self, now_us: int) -> int:
        """What to read the ring after (wall clock)."""
        # Where the wall clock was set back, the driver's next stamps lie before the last one seen.
        self._last_us = min(self._last_us, now_us)
        return self._last_us

    def take(
        self,
        ring: Sequence[ProcessSample] | None,
        owner_of: Callable[[int], int | None],
        offset_s: float,
        now_us: int,
    ) -> None:
        """Keep new samples of jobs' processes (ProcessJobs.owner_of); `offset_s` is wall minus monotonic.

        What lies after `now_us` (wall clock) was stamped before somebody set the clock back.

        One difference of the clocks for all, so that the samples of one tick keep one stamp.

        Some drivers are said to tell each process once, with the stamp of its last work and its mean since
        the last question, not tick by tick. Such samples get one stamp: they are means of the same time, and
        tell only in which proportion the device was used.
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
        """Have the samples of that time arrived, as far as they ever will?"""
        if self.known is None or now_s - span.end_s > PROCESSES_LATE_S:
            return True
        return bool(self.known) and self.known[-1].at_s >= span.end_s - _SAME_S

    def forget(self, before: UtilizationSpan) -> None:
        """All spans up to this one have been split."""
        if self.known is not None:
            oldest = before.end_s - 2 * SAMPLE_MAX_S
            self.known = [s for s in self.known if s.at_s > oldest]


def alone(span: UtilizationSpan, part: AllocatedSpan) -> float:
    """Percent during `part` when nobody else held the device in this span.

    A device that nobody holds is idle, so all that was done in the span was done in the held part of it:
    the driver's samples do not know when a job began.
    """
    return min(100.0, span.percent * (span.end_s - span.start_s) / part.seconds)


def shared(
    span: UtilizationSpan,
    parts: Mapping[int, AllocatedSpan],
    samples: Sequence[JobSample] | None,
    *,
    unknown_jobs: bool = False,
) -> Mapping[int, float | None]:
    """Percent of each job during its part, from per-process samples; None where those do not exist.

    Samples inside the span count by their mean, else the first one after it, which stands for the time before
    it too; a job without samples did nothing, unless no process has any and the device was busy. What a
    process did of which nobody can tell whose it was is that of the only job there, if no `unknown_jobs` may
    be, of whom nothing is known; else nobody's share is known. Together the jobs never exceed the device.
    Means of a longer time divide what the device did among all: where jobs worked in turns, each has its own
    in the mean over that time.
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
    """Percent of the whole device during `part` of a span, given what each holder did in its own part.

    What none of them did was done evenly over the span.
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
