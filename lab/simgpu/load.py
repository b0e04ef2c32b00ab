"""The piecewise linear load of processes on one target, and its exact integral, as in lab/nvml/load.c.

A target is a GPU or a MIG instance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

FULL_PCT = 100.0
# The number of Simpson steps for a piece in which processes request more than a full device.
_STEPS = 16


class Point(NamedTuple):
    """One vertex of a schedule; two vertices at one time make a step."""

    time_ns: int
    util_pct: float
    memory_mib: float


class Activity(NamedTuple):
    """The GPM metrics of a process as factors of its utilisation, from 0 to 1."""

    sm_active: float = 0.6
    sm_occupancy: float = 0.4
    tensor: float = 0.3
    dram: float = 0.6


USUAL = Activity()


class Footprint(NamedTuple):
    """The effect of a process on power, links and clock of a GPU."""

    # The process's power above idle is multiplied by this factor, from 0 to 1; pcie and nvlink are similar.
    power: float = 1.0
    pcie: float = 1.0
    nvlink: float = 1.0
    # The fraction of the maximum SM clock while the process runs; the lowest value of all processes applies.
    clock: float = 1.0
    # NVML's clocks event reasons while the process runs.
    reasons: int = 0


FULL = Footprint()


class Part:
    """One process's schedule on a target; from ``end_ns`` on, if given, its load is 0."""

    def __init__(self, points: Sequence[Point], end_ns: int | None = None) -> None:
        self.points = points
        self.times = [point.time_ns for point in points]
        self.start_ns = self.times[0]
        self.end_ns = self.times[-1] if end_ns is None else min(end_ns, self.times[-1])

    def line(self, start_ns: int, end_ns: int) -> tuple[Point, Point]:
        """Return the values at both ends of an interval that contains no vertex."""
        if start_ns < self.start_ns or end_ns > self.end_ns:
            return Point(start_ns, 0.0, 0.0), Point(end_ns, 0.0, 0.0)
        index = min(bisect_right(self.times, start_ns), len(self.times) - 1)
        left, right = self.points[index - 1], self.points[index]
        return _between(left, right, start_ns), _between(left, right, end_ns)


def _between(left: Point, right: Point, at_ns: int) -> Point:
    x = (at_ns - left.time_ns) / (right.time_ns - left.time_ns) if right.time_ns > left.time_ns else 1.0
    return Point(
        at_ns,
        left.util_pct + (right.util_pct - left.util_pct) * x,
        left.memory_mib + (right.memory_mib - left.memory_mib) * x,
    )


class Integral(NamedTuple):
    """Integrals over an interval, in percent × ns and MiB × ns; shares and memory by part."""

    # The target's utilisation: the sum of the parts, at most 100 at any time.
    busy: float
    # Each part's share of the utilisation; if the sum exceeds 100, all shares are reduced in proportion.
    shares: list[float]
    memory: list[float]


def integrate(parts: Sequence[Part], start_ns: int, end_ns: int) -> Integral:
    """Integrate the load of ``parts`` on one target between two times."""
    busy = 0.0
    shares = [0.0] * len(parts)
    memory = [0.0] * len(parts)
    for left_ns, right_ns in _pieces(parts, start_ns, end_ns):
        lines = [part.line(left_ns, right_ns) for part in parts]
        width = right_ns - left_ns
        for index, (left, right) in enumerate(lines):
            memory[index] += (left.memory_mib + right.memory_mib) / 2 * width
        busy += _add_busy(lines, width, shares)
    return Integral(busy, shares, memory)


def _pieces(parts: Sequence[Part], start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """Divide an interval at each start, vertex and end of a part."""
    cuts = {start_ns, end_ns}
    for part in parts:
        cuts.update(time for time in (*part.times, part.end_ns) if start_ns < time < end_ns)
    ordered = sorted(cuts)
    return pairwise(ordered)


def _add_busy(lines: Sequence[tuple[Point, Point]], width: float, shares: list[float]) -> float:
    """Add one piece to ``shares``, and return the integral of the target's utilisation over the piece."""
    left = sum(line[0].util_pct for line in lines)
    right = sum(line[1].util_pct for line in lines)
    cuts = [0.0, 1.0]
    if (left < FULL_PCT) != (right < FULL_PCT):
        cuts.insert(1, (FULL_PCT - left) / (right - left))
    busy = 0.0
    for begin, end in pairwise(cuts):
        full = left + (right - left) * (begin + end) / 2 > FULL_PCT
        for x, weight in _simpson(begin, end) if full else _trapezium(begin, end):
            total = left + (right - left) * x
            scale = FULL_PCT / total if full else 1.0
            busy += weight * width * (FULL_PCT if full else total)
            for index, (one, other) in enumerate(lines):
                shares[index] += weight * width * scale * (one.util_pct + (other.util_pct - one.util_pct) * x)
    return busy


def _trapezium(begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield (x, weight) of the trapezoidal rule: exact for straight lines."""
    yield begin, (end - begin) / 2
    yield end, (end - begin) / 2


def _simpson(begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield (x, weight) of the composite Simpson rule: exact to 1e-9 for shares of a full device."""
    step = (end - begin) / _STEPS
    for index in range(_STEPS + 1):
        factor = 1 if index in (0, _STEPS) else 4 if index % 2 else 2
        yield begin + step * index, step / 3 * factor
