"""Convert a device's utilisation to contiguous spans, using the driver's ring if there is one.

Each sample of the ring covers the time since the previous one. Its wall-clock timestamps are converted to
Clock.monotonic() with the clock offset at the time of reading. If the wall clock has been set since the last
sample, the current content of the ring is dropped. If the clock was set back, old samples have timestamps in
the future. In this case, the ring has to be read again immediately, while these timestamps still identify the
old samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.node.gpu.reading import Reading
from slurm_gpu.node.measure.intervals import OWN_S

# The driver samples every 1/6 to 1 s, so a sample after a longer pause does not cover all of it.
SAMPLE_MAX_S = 1.5
# If the ring has had no new samples for this long (an idle GPU), the current value is used.
QUIET_S = 1.5
_CLOCK_STEP_S = 0.05
_US = 1_000_000


class UtilizationSpan(NamedTuple):
    """The utilisation in percent from `start_s` to `end_s` (Clock.monotonic())."""

    start_s: float
    end_s: float
    percent: float


class UtilizationSpans:
    """The spans of one device; `covered_s` is the time up to which they have been returned.

    `has_ring` is false if the device has only a current value, which has to be read more often.
    """

    def __init__(self, clock: Clock, since_s: float, *, was_set: bool = False) -> None:
        """If `was_set` is true, the ring may contain timestamps from before and after a clock step."""
        self._clock = clock
        self._offset_s = wall_ahead_s(clock)
        self._since_s = since_s
        # A sample may start before `since_s`; it can be counted only if its full length is known.
        self.covered_s = since_s - SAMPLE_MAX_S
        self.has_ring = True
        self._last_us = self._to_us(self.covered_s)
        self._anchored = False
        # The time of the last answer, and the start of the current period without a gap in answers.
        self._answered_s: float | None = None
        self._answers_since_s = since_s
        # Timestamps that were ahead of the clock at the first reading, or at the first one after a step,
        # because the clock had been set back.
        self._from_before: set[int] = set()
        self._is_first, self._was_set = True, was_set

    @property
    def after_us(self) -> int:
        """Return the wall-clock time in µs after which samples are to be read from the ring."""
        return self._last_us

    def take(
        self, reading: Reading, gap_s: float, *, detailed: bool, to_the_end: bool = False
    ) -> Sequence[UtilizationSpan]:
        """Return new spans, oldest first, from a reading whose ring contains samples after `after_us`.

        A detailed reading also contains the current value. The current value is used if the ring has had no
        new samples for a while, or immediately if `to_the_end` is true. Only the ring can cover the time
        between two readings that are more than `gap_s` apart.
        """
        now_s = reading.at_s
        if self._answered_s is None or now_s - self._answered_s > gap_s:
            self._answers_since_s = now_s - OWN_S
        self._answered_s = now_s
        self.has_ring = reading.ring is not None
        spans: list[UtilizationSpan] = []
        latest_us = self._to_us(self._clock.monotonic() + _CLOCK_STEP_S)
        ring = reading.ring or ()
        if ring and self._is_first:
            self._from_before.update(sample.at_us for sample in ring if sample.at_us > latest_us)
            if self._from_before or self._was_set:
                # Samples with earlier timestamps also precede the step; for later timestamps, this is
                # unknown.
                self._begin_at(now_s)
                ring = ()
            self._is_first = self._was_set = False
        for sample in ring:
            if sample.at_us > latest_us or sample.at_us in self._from_before:
                continue
            before_s, at_s = self._to_s(self._last_us), self._to_s(sample.at_us)
            self._last_us = sample.at_us
            anchored, self._anchored = self._anchored, True
            start_s = max(before_s, self.covered_s)
            percent = sample.percent
            if percent is None or not anchored or at_s - before_s > SAMPLE_MAX_S or at_s <= start_s:
                self.covered_s = max(self.covered_s, min(at_s, now_s))
                continue
            spans.append(UtilizationSpan(start_s, at_s, percent))
            self.covered_s = at_s
        quiet_s = now_s - max(self.covered_s, self._since_s)
        if quiet_s > 0 and (not self.has_ring or (detailed and (to_the_end or quiet_s > QUIET_S))):
            spans.extend(self._current(now_s, reading.util_pct))
        return spans

    def _current(self, now_s: float, percent: float | None) -> Sequence[UtilizationSpan]:
        start_s, self.covered_s = max(self.covered_s, self._since_s, self._answers_since_s), now_s
        self._last_us, self._anchored = max(self._last_us, self._to_us(now_s)), True
        return [] if percent is None else [UtilizationSpan(start_s, now_s, percent)]

    def interrupt(self) -> None:
        """Record an outage, so that the next current value does not cover it."""
        self._answered_s = None

    def clock_was_set(self, now_s: float) -> bool:
        """Return whether the wall clock has been set since the last sample; call this before each `take`.

        If so, the ring of the new reading is useless, because it was requested with a time before the step.
        Read the ring again immediately: timestamps ahead of the clock identify the old samples.
        """
        offset_s = wall_ahead_s(self._clock)
        moved = abs(offset_s - self._offset_s) > _CLOCK_STEP_S
        was_set_back = offset_s < self._offset_s
        # A slewed clock drifts by less than _CLOCK_STEP_S between two samples; adopt its offset.
        self._offset_s = offset_s
        if moved:
            self._begin_at(now_s)
            self._from_before.clear()
            self._is_first, self._was_set = True, was_set_back
        return moved

    def was_set_back(self) -> bool:
        """Return whether the wall clock has been set back since the last sample."""
        return self._offset_s - wall_ahead_s(self._clock) > _CLOCK_STEP_S

    def _begin_at(self, now_s: float) -> None:
        """Drop the current content of the ring."""
        self.covered_s, self._last_us, self._anchored = now_s, self._to_us(now_s), True

    def _to_us(self, at_s: float) -> int:
        return round((at_s + self._offset_s) * _US)

    def _to_s(self, at_us: int) -> float:
        return at_us / _US - self._offset_s
