"""Measure the energy and mean power of a segment with the energy counter, or else with power samples.

The counters of some drivers stall while the GPU draws power. A counter is considered stalled if it grows by
much less than the integral of the power samples. If the counter catches up later, it was merely delayed.
Otherwise, the samples are integrated over the stall, and parts without samples are unmeasured.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.node.gpu.reading import DeviceCounter
from slurm_gpu.node.measure.counters import growth
from slurm_gpu.node.measure.intervals import CoveredMean, Gauge, Interval
from slurm_gpu.node.measure.links import SLACK
from slurm_gpu.node.measure.statistics import MeanSum
from slurm_gpu.wire import Total

# A counter counts as stalled if it grew by less than this fraction of the sampled energy. The samples cover a
# quarter of the time at worst (A100, H100), so smaller differences prove nothing.
_STALLED_PART = 0.1
# Drivers update their counters within this time.
_LATEST_S = 1.0


@dataclass(slots=True)
class _Stall:
    """The total and allocated time, and the counted and sampled energy, since the counter stalled."""

    between_s: float = 0.0
    allocated_s: float = 0.0
    counted_j: float = 0.0
    sampled: MeanSum = field(default_factory=MeanSum)

    def add(self, interval: Interval, counted_j: float, sampled: CoveredMean | None) -> None:
        """Add an interval in which the counter was stalled."""
        self.between_s += interval.between_s
        self.allocated_s += interval.allocated_s
        self.counted_j += counted_j
        if sampled is not None:
            self.sampled.add(sampled.seconds, sampled.mean, sampled.low, sampled.high)


class EnergySum:
    """Collects readings of the energy counter and of power; `limit_w` is the power limit, if known."""

    def __init__(self, limit_w: float | None) -> None:
        # The power limit, or a higher sampled value if the limit was raised.
        self._most_w = limit_w
        self._watts = Gauge()
        self._before: DeviceCounter | None = None
        self._power = MeanSum()
        self._seconds = self._joules = self._sampled_s = 0.0
        self._stall: _Stall | None = None

    def see(
        self, counter: DeviceCounter | None, watts: float | None, interval: Interval, *, alone: bool
    ) -> CoveredMean | None:
        """Count the readings at the end of the interval; return its mean power, or None if it is unknown.

        While the segment is not `alone` on the device, its own power is unknown.
        """
        sampled = self._watts.peek(watts if alone else None, interval, ended=interval.ended)
        if self._most_w is not None and watts is not None:
            self._most_w = max(self._most_w, watts)
        before, self._before = self._before, counter
        if counter is None:
            self._end_stall()
            return self._count_sampled(sampled)
        grown_j = None
        if alone and before is not None and interval.allocated_s > 0:
            grown_j = self._grown_j(before, counter, interval)
        if grown_j is None:
            self._end_stall()
            if sampled is not None:
                self._add_power(sampled)
            return sampled
        expected_j = None
        if sampled is not None and sampled.begin_s == interval.begin_s:
            expected_j = sampled.mean * interval.between_s
        if _is_stalled(grown_j, expected_j):
            self._stall = self._stall or _Stall()
            self._stall.add(interval, grown_j, sampled)
            return sampled
        return self._count(grown_j, interval, sampled)

    def _grown_j(self, before: DeviceCounter, counter: DeviceCounter, interval: Interval) -> float | None:
        waited_s = interval.between_s + (0.0 if self._stall is None else self._stall.between_s)
        most_mj_per_s = None if self._most_w is None else 1000 * SLACK * self._most_w
        grown_mj = growth(before, counter, waited_s, most_mj_per_s)
        return None if grown_mj is None else grown_mj / 1000

    def _count(self, grown_j: float, interval: Interval, sampled: CoveredMean | None) -> CoveredMean | None:
        """Count the growth of the counter, including the energy of a stall if the growth includes it."""
        between_s, allocated_s = interval.between_s, interval.allocated_s
        low, high = (math.inf, -math.inf) if sampled is None else (sampled.low, sampled.high)
        stall = self._stall
        if stall is not None:
            caught_up = _has_caught_up(stall, grown_j, sampled, between_s)
            if caught_up:
                self._stall = None
                grown_j += stall.counted_j
                between_s += stall.between_s
                allocated_s += stall.allocated_s
                seen = stall.sampled.value()
                if seen is not None:
                    low, high = min(low, seen.min), max(high, seen.max)
            else:
                self._end_stall()
            if caught_up is None:
                return self._count_sampled(sampled)
        watts = grown_j / between_s
        self._power.add(allocated_s, watts, min(low, watts), max(high, watts))
        self._seconds += allocated_s
        self._joules += watts * allocated_s
        return CoveredMean(interval.begin_s, interval.end_s, watts, watts, watts)

    def _count_sampled(self, sampled: CoveredMean | None) -> CoveredMean | None:
        if sampled is not None:
            self._integrate(sampled.seconds, sampled.mean)
            self._add_power(sampled)
        return sampled

    def _add_power(self, sampled: CoveredMean) -> None:
        self._power.add(sampled.seconds, sampled.mean, sampled.low, sampled.high)

    def _integrate(self, seconds: float, watts: float) -> None:
        self._seconds += seconds
        self._joules += watts * seconds
        self._sampled_s += seconds

    def _end_stall(self) -> None:
        """Count the power samples of the stall instead, because the counter did not catch up."""
        stall, self._stall = self._stall, None
        sampled = None if stall is None else stall.sampled.value()
        if sampled is not None:
            self._integrate(sampled.seconds, sampled.mean)
            self._power.add(sampled.seconds, sampled.mean, sampled.min, sampled.max)

    def forget(self) -> None:
        """Start again at the next reading, because the counter may have been reset."""
        self._end_stall()
        self._before = None

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of a record; a counter that is stalled now is assumed not to catch up."""
        so_far = self if self._stall is None else copy.deepcopy(self)
        so_far._end_stall()
        energy = None
        if so_far._seconds > 0:
            energy = Total(round(so_far._seconds, 3), round(so_far._joules, 3))
        return {
            "power_w": so_far._power.value(),
            "energy_j": energy,
            "energy_sampled_s": round(so_far._sampled_s, 3) if so_far._sampled_s > 0 else None,
        }


def _is_stalled(grown_j: float, expected_j: float | None) -> bool:
    if expected_j is None:
        return grown_j == 0
    return expected_j > 0 and grown_j < _STALLED_PART * expected_j


def _has_caught_up(stall: _Stall, grown_j: float, now: CoveredMean | None, between_s: float) -> bool | None:
    """Return whether the growth in `between_s` includes the energy of the stall; None if that is unknown.

    `now` is the current power of the GPU. This power is assumed for the part of a stall without samples.
    """
    if now is None:
        return True if stall.between_s <= _LATEST_S else None
    sampled = stall.sampled.value()
    missing_j = (now.mean if sampled is None else sampled.mean) * stall.between_s - stall.counted_j
    own_j = now.mean * between_s
    if grown_j > own_j + missing_j / 2:
        return True
    return False if grown_j <= 2 * own_j else None
