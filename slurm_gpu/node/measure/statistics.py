"""Compute time-weighted sums in O(1) memory for the statistics of a record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from slurm_gpu.wire import Mean

# Intervals, each with its start, its end (s) and its value.
Values = Iterable[tuple[float, float, float]]

_US = 1_000_000
# The maximum rounding error of a float sum after everything was subtracted from it.
_NOTHING_S = 1e-6


class MeanSum:
    """A time-weighted mean with its extremes."""

    __slots__ = ("_high", "_low", "_seconds", "_weighted")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._weighted = 0.0
        self._low = math.inf
        self._high = -math.inf

    def add(self, seconds: float, mean: float, low: float, high: float) -> None:
        """Add an interval of `seconds` (> 0) with its mean and its extremes `low` and `high`."""
        self._seconds += seconds
        self._weighted += seconds * mean
        if low < self._low:
            self._low = low
        if high > self._high:
            self._high = high

    def add_all(self, values: Values) -> None:
        """Add several intervals, each with its value."""
        for start_s, end_s, value in values:
            seconds = end_s - start_s
            self._seconds += seconds
            self._weighted += seconds * value
            if value < self._low:
                self._low = value
            if value > self._high:
                self._high = value

    def take_back(self, seconds: float, mean: float) -> None:
        """Undo all or part of an addition; the extremes are not changed."""
        self._seconds -= seconds
        self._weighted = max(0.0, self._weighted - seconds * mean)
        if self._seconds < _NOTHING_S:
            self._seconds = self._weighted = 0.0

    def value(self, unit: float = 1.0) -> Mean | None:
        """Return the mean in units of `unit`, or None if nothing has been measured yet."""
        if self._seconds == 0:
            return None
        mean = self._weighted / self._seconds
        # A mean that comes from counters may be outside the sampled extremes.
        low, high = min(self._low, mean), max(self._high, mean)
        return Mean(round(self._seconds, 3), *(_digits(value / unit) for value in (mean, low, high)))


class HistogramSum:
    """The time spent at each whole percent, in whole microseconds so that sums remain exact."""

    __slots__ = ("_bins",)

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}

    def add(self, seconds: float, percent: float) -> None:
        """Add `seconds` to the nearest whole percent; halves are rounded up."""
        self.add_all(((0.0, seconds, percent),))

    def add_all(self, percents: Values) -> None:
        """Add several intervals at once."""
        bins = self._bins
        for start_s, end_s, percent in percents:
            whole = int(percent + 0.5) if 0 < percent < 100 else 0 if percent <= 0 else 100
            bins[whole] = bins.get(whole, 0) + round((end_s - start_s) * _US)

    def take_back(self, seconds: float, percent: float) -> None:
        """Undo all or part of an addition."""
        self.add(-seconds, percent)
        self._bins = {whole: us for whole, us in self._bins.items() if us > 0}

    @property
    def value(self) -> Mapping[int, int] | None:
        """Return the histogram in ms; the sum over all bins is the total time, rounded to the nearest ms."""
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


def _digits(value: float) -> float:
    # Seven digits exceed any device's precision and halve the size of a shipment.
    return float(f"{value:.7g}")
