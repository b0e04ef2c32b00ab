"""Time-weighted sums that take readings in O(1) memory and give the statistics of a record."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.records import Mean

_US = 1_000_000


class MeanSum:
    """A time-weighted mean with its extremes."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._weighted = 0.0
        self._low = 0.0
        self._high = 0.0

    def add(self, seconds: float, mean: float, low: float, high: float) -> None:
        """Count `seconds` (> 0) at that mean."""
        self._low = min(self._low, low) if self._seconds > 0 else low
        self._high = max(self._high, high) if self._seconds > 0 else high
        self._seconds += seconds
        self._weighted += seconds * mean

    @property
    def value(self) -> Mean | None:
        """None until something was measured."""
        if self._seconds == 0:
            return None
        mean = min(max(self._weighted / self._seconds, self._low), self._high)
        # Six decimals are less than any reading tells, and half the bytes of a shipment.
        return Mean(*(round(value, 6) for value in (self._seconds, mean, self._low, self._high)))


class HistogramSum:
    """Time spent at each whole percent, kept in whole microseconds so that sums stay exact."""

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}

    def add(self, seconds: float, percent: float) -> None:
        """Count `seconds` at the whole percent next to `percent` (halves go up)."""
        whole = min(100, max(0, int(percent + 0.5)))
        self._bins[whole] = self._bins.get(whole, 0) + round(seconds * _US)

    @property
    def seconds(self) -> float:
        """All time counted."""
        return sum(self._bins.values()) / _US

    @property
    def value(self) -> Mapping[int, int] | None:
        """In ms; the sum is the whole time to the nearest ms, however many bins were rounded."""
        if not self._bins:
            return None
        histogram: dict[int, int] = {}
        running = reached = 0
        for percent in sorted(self._bins):
            running += self._bins[percent]
            milliseconds = (running + 500) // 1000 - reached
            reached += milliseconds
            if milliseconds:
                histogram[percent] = milliseconds
        return histogram
