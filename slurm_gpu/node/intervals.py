"""What lies between two readings of one quantity.

Readings are points in time. Between two of them a quantity is taken to run straight from one to the other:
where it jumped at an unknown moment in between, that is right on average. Readings further apart than
`gap_s` measured nothing in between. All times here are Clock.monotonic() seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Interval:
    """What lies between two readings of one quantity, clipped to the time of holding."""

    seconds: float
    before: float
    after: float

    @property
    def mean(self) -> float:
        """Of a straight line from one reading to the other."""
        return (self.before + self.after) / 2


class Readings:
    """Turns successive readings of one quantity into intervals within [start, end]."""

    def __init__(self, start_s: float) -> None:
        self._start = start_s
        self._at: float | None = None
        self._value = 0.0

    def interval(
        self, at_s: float, value: float | None, end_s: float | None, gap_s: float
    ) -> Interval | None:
        """The interval that this reading closes, or None at a gap (a reading of None begins one).

        The first reading stands for the time back to the start too, if that is no longer than `gap_s`.
        """
        before_at, before = self._at, self._value
        if value is None:
            self._at = None
            self._start = max(self._start, at_s)
            return None
        self._at, self._value = at_s, value
        if before_at is None:
            before_at, before = self._start, value
        if at_s - before_at > gap_s:
            return None
        stop = at_s if end_s is None else min(at_s, end_s)
        seconds = stop - max(before_at, self._start)
        return Interval(seconds, before, value) if seconds > 0 else None
