"""Represent the time between two readings, and the values of a quantity during that time.

Readings are points in time. A quantity is interpolated linearly between two readings: if it jumped at an
unknown time between them, the mean is correct on average. The first reading, and the first after a pause or a
failure, each cover at most OWN_S. All times are Clock.monotonic() seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_gpu.node.measure.statistics import MeanSum

# A first reading, or a reading after a pause, covers at most this time before it.
OWN_S = 0.5


class CoveredMean(NamedTuple):
    """The mean and the extremes of a quantity from `begin_s` to `end_s`."""

    begin_s: float
    end_s: float
    mean: float
    low: float
    high: float

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.end_s - self.begin_s


class Interval:
    """The time from a reading to the next one, at `at_s`, and the part of it that belongs to a segment.

    The segment has the device from `begin_s` to `end_s`, for `allocated_s` in total; `between_s` is the time
    between the readings. `continues` is true if the time between them was covered. From `own_begin_s` on, the
    second reading covers the interval even without the first.
    """

    __slots__ = (
        "_start_s",
        "allocated_s",
        "at_s",
        "begin_s",
        "between_s",
        "continues",
        "end_s",
        "own_begin_s",
    )

    def __init__(self, start_s: float) -> None:
        self._start_s = self.at_s = self.begin_s = self.end_s = self.own_begin_s = start_s
        self.between_s = self.allocated_s = 0.0
        self.continues = False

    @property
    def ended(self) -> bool:
        """Return whether the reading was made after the segment's end."""
        return self.end_s < self.at_s

    def step(self, at_s: float, end_s: float | None, gap_s: float) -> None:
        """Move to the interval that ends with a reading at `at_s`; the segment ended at `end_s` or continues.

        If more than `gap_s` passed since the last reading, the time in between was not covered.
        """
        before_s, self.at_s = self.at_s, at_s
        self.begin_s = before_s if before_s > self._start_s else self._start_s
        self.end_s = at_s if end_s is None or at_s < end_s else end_s
        self.between_s = at_s - before_s
        allocated_s = self.end_s - self.begin_s
        self.allocated_s = allocated_s if allocated_s > 0 else 0.0
        own_s = at_s - OWN_S
        self.own_begin_s = own_s if own_s > self.begin_s else self.begin_s
        self.continues = self.between_s <= gap_s


class Gauge:
    """A quantity that is sampled at points in time."""

    __slots__ = ("_before", "sum")

    def __init__(self) -> None:
        self._before: float | None = None
        self.sum = MeanSum()

    def see(self, value: float | None, interval: Interval, *, ended: bool = False) -> CoveredMean | None:
        """Count the reading at the end of the interval, and return the known values of the interval.

        A reading of None means that the time is unmeasured. If the segment has `ended` before the reading,
        the previous reading is used instead.
        """
        covered = self.peek(value, interval, ended=ended)
        if covered is not None:
            self.sum.add(covered.seconds, covered.mean, covered.low, covered.high)
        return covered

    def peek(self, value: float | None, interval: Interval, *, ended: bool = False) -> CoveredMean | None:
        """Return the same values as `see` and remember the reading, but do not count it."""
        before, self._before = self._before, value
        if not interval.continues:
            before = None
        if ended and before is not None:
            value = before
        if value is None:
            return None
        begin_s, end_s = interval.begin_s, interval.end_s
        if before is None:
            begin_s, before = interval.own_begin_s, value
        if begin_s >= end_s:
            return None
        if before == value:
            return CoveredMean(begin_s, end_s, value, value, value)
        low, high = (before, value) if before < value else (value, before)
        return CoveredMean(begin_s, end_s, (before + value) / 2, low, high)
