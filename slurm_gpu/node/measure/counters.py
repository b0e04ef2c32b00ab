"""Sum the growth of a device's counters in a segment, taking wraps and resets into account."""

from __future__ import annotations

from slurm_gpu.node.gpu.reading import DeviceCounter
from slurm_gpu.wire import Total

# Drivers update their counters with at most this delay.
_LATE_S = 0.5


def growth(
    before: DeviceCounter, after: DeviceCounter, seconds: float, most_per_s: float | None
) -> int | None:
    """Return the growth between two readings `seconds` apart, or None if it is unknown.

    A counter that decreased has either wrapped at 2**bits or restarted with the driver. A wrap is assumed if
    the resulting growth is less than half the counter's range and, if `most_per_s` is given, no faster than
    this rate. The growth is unknown if the counter may have wrapped twice.
    """
    if after.bits != before.bits:
        return None
    span = 1 << after.bits
    grown = after.value - before.value
    if grown < 0:
        grown += span
        if 2 * grown >= span:
            return None
    if most_per_s is not None:
        most = most_per_s * (seconds + _LATE_S)
        if grown > most or most >= span:
            return None
    return grown


class CounterSum:
    """The growth of one counter during a segment; `most_per_s` is its maximum rate, if known."""

    __slots__ = ("_before", "_grown", "_most_per_s", "_seconds")

    def __init__(self, most_per_s: float | None = None) -> None:
        self._most_per_s = most_per_s
        self._before: DeviceCounter | None = None
        self._seconds = 0.0
        self._grown = 0.0

    def see(self, counter: DeviceCounter | None, between_s: float, allocated_s: float) -> float | None:
        """Count a reading, `between_s` after the previous one; return the growth per second, if known.

        Only `allocated_s` of `between_s`, and a proportional part of the growth, count. A reading of None
        means that the time is unmeasured. Readings may be any time apart, because the counters continue to
        count in between.
        """
        before, self._before = self._before, counter
        if before is None or counter is None or allocated_s <= 0:
            return None
        grown = growth(before, counter, between_s, self._most_per_s)
        if grown is None:
            return None
        rate = grown / between_s
        self._seconds += allocated_s
        self._grown += grown if allocated_s >= between_s else rate * allocated_s
        return rate

    def add(self, rate: float, seconds: float) -> None:
        """Add `seconds` of growth at a rate that was measured by other means."""
        self._seconds += seconds
        self._grown += rate * seconds

    def forget(self) -> None:
        """Treat the time before the next reading as unmeasured."""
        self._before = None

    @property
    def has_grown(self) -> bool:
        """Return whether the counter has grown."""
        return self._grown > 0

    def total(self, unit: float = 1.0, digits: int | None = None) -> Total | None:
        """Return the rounded growth in units of `unit`, or None if nothing has been measured."""
        if self._seconds == 0:
            return None
        return Total(round(self._seconds, 3), round(self._grown / unit, digits))
