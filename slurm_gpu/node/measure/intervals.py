"""What lies between two looks, and what a quantity was in between.

Looks are points in time. Between two of them a quantity is taken to run straight from one to the other: where
it jumped at an unknown moment in between, that is right on average. All times are Clock.monotonic() seconds.
"""

from __future__ import annotations

from slurm_gpu.node.measure.statistics import MeanSum


class Interval:
    """The time from the look before to that at `at_s`, and what [start, end] of a segment has of it.

    `begin_s` to `end_s` was held, `held_s` in all; `between_s` lie between the looks. The first look stands
    for the time back to the start.
    """

    __slots__ = ("_start_s", "at_s", "begin_s", "between_s", "end_s", "held_s")

    def __init__(self, start_s: float) -> None:
        self._start_s = self.at_s = self.begin_s = self.end_s = start_s
        self.between_s = self.held_s = 0.0

    @property
    def ended(self) -> bool:
        """Was the look made after the segment's end?"""
        return self.end_s < self.at_s

    def step(self, at_s: float, end_s: float | None) -> None:
        """Look at `at_s`, where the segment ended at `end_s` or goes on."""
        before_s, self.at_s = self.at_s, at_s
        self.begin_s = before_s if before_s > self._start_s else self._start_s
        self.end_s = at_s if end_s is None or at_s < end_s else end_s
        self.between_s = at_s - before_s
        held_s = self.end_s - self.begin_s
        self.held_s = held_s if held_s > 0 else 0.0


class Gauge:
    """A quantity that is read at moments."""

    __slots__ = ("_before", "sum")

    def __init__(self) -> None:
        self._before: float | None = None
        self.sum = MeanSum()

    def see(self, value: float | None, seconds: float, *, ended: bool = False) -> float | None:
        """Its mean over the `seconds` since the reading before, which are 0 after a gap; None if unknown.

        A reading of None begins a gap. The first reading after one stands for the time before it too. Where
        the segment has `ended` before the reading, the one before tells more of its time.
        """
        before, self._before = self._before, value
        if ended and before is not None:
            value = before
        if value is None or seconds <= 0:
            return None
        if before is None or before == value:
            self.sum.add(seconds, value, value, value)
            return value
        mean = (before + value) / 2
        if before < value:
            self.sum.add(seconds, mean, before, value)
        else:
            self.sum.add(seconds, mean, value, before)
        return mean
