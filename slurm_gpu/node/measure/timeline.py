"""Collect the timeline of one segment on one device: fractions in bins whose width doubles over time.

A bin contains the integral of its values and the measured time. Doubling the width therefore preserves the
sum over all added values.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Collection, Mapping
from operator import add

from slurm_gpu.node.measure.statistics import Values
from slurm_gpu.wire import Timeline
from slurm_gpu.wire.timeline import GAP, MAX_BINS, level

# Maximum compressed size of the series in a shipment; noisy series get wider bins.
MAX_WIRE_BYTES = 1200
# The maximum rounding error of a float sum after everything was subtracted from it.
_NOTHING_S = 1e-6


class _Bins:
    """A series, with the integral (fraction × s), the measured seconds and the encoded level of each bin."""

    __slots__ = ("changed", "integrals", "levels", "seconds")

    def __init__(self) -> None:
        self.integrals = array("d", bytes(8 * MAX_BINS))
        self.seconds = array("d", bytes(8 * MAX_BINS))
        self.levels = bytearray([GAP]) * MAX_BINS
        self.changed = MAX_BINS

    def merge_pairs(self, odd: bool) -> None:
        """Merge pairs of bins; if `odd` is true, the first bin is the second of its pair."""
        self.integrals = _pairs(self.integrals, odd)
        self.seconds = _pairs(self.seconds, odd)
        self.levels = bytearray([GAP]) * MAX_BINS
        self.changed = 0

    def encoded(self, n: int) -> bytes:
        """Return the encoded levels of the first `n` bins; only changed bins are encoded again."""
        for index in range(self.changed, n):
            seconds = self.seconds[index]
            if seconds > 0:
                self.levels[index] = level(self.integrals[index] / seconds)
        self.changed = MAX_BINS
        return bytes(self.levels[:n])


class TimelineSum:
    """Collects series starting at `start_s` (Clock.monotonic()), when the wall clock was `wall_s`.

    Bins are aligned to the wall clock as of `start_s`, even if the clock is set later.
    """

    def __init__(self, start_s: float, wall_s: float) -> None:
        self._width_s = 1
        self._start_wall_s = math.floor(wall_s)
        # When the first bin begins, by the monotonic clock.
        self._zero_s = start_s - (wall_s - self._start_wall_s)
        self._n = 0
        self._series: dict[str, _Bins] = {}

    def add(self, start_s: float, end_s: float, fractions: Mapping[str, float | None]) -> None:
        """Add the value of each series from `start_s` to `end_s`; None means that it was not measured."""
        begin, end = max(0.0, start_s - self._zero_s), end_s - self._zero_s
        if end <= begin:
            return
        while end > MAX_BINS * self._width_s:
            self.double()
            begin, end = max(0.0, start_s - self._zero_s), end_s - self._zero_s
        width = self._width_s
        first = int(begin / width)
        last = max(first, math.ceil(end / width) - 1)
        self._n = max(self._n, last + 1)
        for name, fraction in fractions.items():
            if fraction is None:
                continue
            bins = self._series.get(name)
            if bins is None:
                bins = self._series[name] = _Bins()
            bins.changed = min(bins.changed, first)
            if first == last:
                bins.integrals[first] += (end - begin) * fraction
                bins.seconds[first] += end - begin
                continue
            for index in range(first, last + 1):
                seconds = min(end, (index + 1) * width) - max(begin, index * width)
                bins.integrals[index] += seconds * fraction
                bins.seconds[index] += seconds

    def add_one(self, start_s: float, end_s: float, name: str, fraction: float) -> None:
        """Add an interval to one series."""
        self.add_all(name, ((start_s, end_s, fraction),))

    def add_all(self, name: str, values: Values, unit: float = 1.0) -> None:
        """Add intervals with values in units of `unit` to one series; this is the most frequent call."""
        bins, zero_s, width_s = self._series.get(name), self._zero_s, self._width_s
        for start_s, end_s, value in values:
            begin, end = start_s - zero_s, end_s - zero_s
            index = int(begin / width_s)
            if bins is None or not 0 <= begin < end <= (index + 1) * width_s or index >= self._n:
                self.add(start_s, end_s, {name: value / unit})
                bins, zero_s, width_s = self._series.get(name), self._zero_s, self._width_s
                continue
            bins.integrals[index] += (end - begin) * value / unit
            bins.seconds[index] += end - begin
            if index < bins.changed:
                bins.changed = index

    def take_back(self, start_s: float, end_s: float, name: str, fraction: float) -> None:
        """Undo all or part of an addition to one series."""
        bins, width = self._series.get(name), self._width_s
        begin, end = max(0.0, start_s - self._zero_s), end_s - self._zero_s
        if bins is None:
            return
        for index in range(int(begin / width), math.ceil(end / width)):
            seconds = min(end, (index + 1) * width) - max(begin, index * width)
            bins.integrals[index] -= seconds * fraction
            bins.seconds[index] -= seconds
            if bins.seconds[index] < _NOTHING_S:
                bins.integrals[index] = bins.seconds[index] = 0.0
                bins.levels[index] = GAP
            bins.changed = min(bins.changed, index)

    def double(self) -> None:
        """Make the bins twice as wide."""
        odd = bool(self._start_wall_s // self._width_s % 2)
        if odd:
            self._start_wall_s -= self._width_s
            self._zero_s -= self._width_s
        for bins in self._series.values():
            bins.merge_pairs(odd)
        self._n = (self._n + odd + 1) // 2
        self._width_s *= 2

    def timeline(self, leave_out: Collection[str] = ()) -> Timeline | None:
        """Return the timeline, or None if it is empty; if it is too large for a shipment, widen its bins.

        `leave_out` names series that turned out to be invalid.
        """
        series = {name: bins for name, bins in self._series.items() if name not in leave_out}
        if not series:
            return None
        while True:
            encoded = {name: bins.encoded(self._n) for name, bins in series.items()}
            if self._n == 1 or _wire_bytes(encoded.values()) <= MAX_WIRE_BYTES:
                return Timeline(width_s=self._width_s, start_s=self._start_wall_s, series=encoded)
            self.double()


def _pairs(values: array[float], odd: bool) -> array[float]:
    if odd:
        values = array("d", [0.0]) + values
    merged = array("d", map(add, values[0::2], values[1::2]))
    if odd:
        merged.append(values[-1])
    merged.extend([0.0] * (MAX_BINS - len(merged)))
    return merged


def _wire_bytes(series: Collection[bytes]) -> int:
    """Return an upper bound for the size of the series in a compressed shipment."""
    plain = sum(map(len, series))
    if plain <= MAX_WIRE_BYTES:
        return plain
    return len(zlib.compress(b"\n".join(map(base64.b64encode, series)), 6))
