"""A device's utilization as gap-free spans of time, from the driver's ring where it has one.

Each sample of the ring stands for the time since the sample before it. Its stamps are wall-clock time and
are turned into Clock.monotonic() with the difference of the clocks at the time of reading. If somebody set
the wall clock since the last look, what the ring holds by then is left out. Where it was set back, stamps of
before lie among those of now, and ahead of the clock: by these it is seen, and they are to be read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.node.gpu.reading import Reading
from slurm_gpu.node.measure.intervals import OWN_S

# The driver samples each 1/6 to 1 s: a sample further from the one before says nothing about all that time.
SAMPLE_MAX_S = 1.5
# How long the ring may have nothing new before the current value is asked for instead (an idle GPU).
QUIET_S = 1.5
_CLOCK_STEP_S = 0.05
_US = 1_000_000


class UtilizationSpan(NamedTuple):
    """Utilization in percent from `start_s` to `end_s`, Clock.monotonic() seconds."""

    start_s: float
    end_s: float
    percent: float


class UtilizationSpans:
    """Of one device; `covered_s` is the time up to which spans have been given out.

    `has_ring` is False where the device has only a current value, which has to be read more often.
    """

    def __init__(self, clock: Clock, since_s: float, *, was_set: bool = False) -> None:
        """`was_set`: the wall clock was; what the ring holds may have been stamped before or after."""
        self._clock = clock
        self._offset_s = wall_ahead_s(clock)
        self._since_s = since_s
        # A sample may begin before `since_s`: whoever counts it has to know how long it really was.
        self.covered_s = since_s - SAMPLE_MAX_S
        self.has_ring = True
        self._last_us = self._to_us(self.covered_s)
        self._anchored = False
        # When the device answered last, and since when it has without a pause.
        self._answered_s: float | None = None
        self._answers_since_s = since_s
        # Stamps that lay ahead of the clock at the first reading, or the first since it was set: it was set
        # back since they were made, be it before anybody looked.
        self._from_before: set[int] = set()
        self._is_first, self._was_set = True, was_set

    @property
    def after_us(self) -> int:
        """What to read the ring after (wall clock)."""
        return self._last_us

    def take(
        self, reading: Reading, gap_s: float, *, detailed: bool, to_the_end: bool = False
    ) -> Sequence[UtilizationSpan]:
        """New spans, oldest first, from a reading with the ring after `after_us`.

        A detailed one has the current value too, which stands for the time in which the ring has had nothing
        for long; `to_the_end` takes it at once. Readings further apart than `gap_s` say nothing of the time
        in between, but by the ring.
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
                # Those before these were stamped before, too; which of the others were, nobody can tell.
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
        """The device could not be asked: its next current value says nothing about the time before."""
        self._answered_s = None

    def clock_was_set(self, now_s: float) -> bool:
        """Was the wall clock set since the last look? To be asked with each, before what it read is taken.

        If so, that look's ring is worth nothing: it was read after a stamp of another time. The next one is
        to be read at once: it shows which samples are from before, by stamps that lie ahead of the clock.
        """
        offset_s = wall_ahead_s(self._clock)
        moved = abs(offset_s - self._offset_s) > _CLOCK_STEP_S
        was_set_back = offset_s < self._offset_s
        # A clock that is only slewed drifts by less than this between two looks; follow it.
        self._offset_s = offset_s
        if moved:
            self._begin_at(now_s)
            self._from_before.clear()
            self._is_first, self._was_set = True, was_set_back
        return moved

    def was_set_back(self) -> bool:
        """Was the wall clock set back since the last look?"""
        return self._offset_s - wall_ahead_s(self._clock) > _CLOCK_STEP_S

    def _begin_at(self, now_s: float) -> None:
        """Leave out what the ring holds by now."""
        self.covered_s, self._last_us, self._anchored = now_s, self._to_us(now_s), True

    def _to_us(self, at_s: float) -> int:
        return round((at_s + self._offset_s) * _US)

    def _to_s(self, at_us: int) -> float:
        return at_us / _US - self._offset_s
