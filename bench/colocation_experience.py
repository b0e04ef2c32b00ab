"""Running means of the measured speeds of applications that shared a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.colocation.co_runner_views import CoRunnerView, views_of
from slurm_gpu.colocation.profiles.traits import Floats
from slurm_gpu.colocation.tables.measured import Measured

TABLE_RUNS = 20
"""A table of measurements counts as this number of runs of each group."""
_A_RUN_S = 60.0


def contains(group: Sequence[int], small: Sequence[int]) -> bool:
    """Return whether the group contains all members of the smaller one, each at least as often."""
    there = list(group)
    return all(there.count(one) >= small.count(one) for one in small)


@dataclass(frozen=True, slots=True)
class SpeedStatistics:
    """Running statistics of the speed of one application with certain co-runners."""

    speed: float
    """The mean speed relative to running alone, weighted by time."""
    spread: float
    """The standard deviation of the measured speeds, weighted by time."""
    runs: int
    seconds: float
    """Total duration of all runs."""


class Experience:
    """Speeds by application and co-runners, and the groups that could not run together.

    Applications are indices from 0; more may be added at any time. Means and variances are updated one run at
    a time (West, Updating mean and variance estimates, 1979).
    """

    def __init__(self) -> None:
        self._seen: dict[CoRunnerView, SpeedStatistics] = {}
        self._refused: dict[tuple[int, ...], int] = {}

    @classmethod
    def of(cls, table: Measured) -> Experience:
        """Return the experience from a table, with the indices of the table."""
        own = cls()
        for (one, others), speed in table.speeds.items():
            if speed > 0:
                own.restore(one, others, SpeedStatistics(speed, 0.0, TABLE_RUNS, TABLE_RUNS * _A_RUN_S))
        for group in {
            tuple(sorted((one, *others))) for (one, others), speed in table.speeds.items() if speed == 0
        }:
            own.refuse(group, TABLE_RUNS)
        return own

    def add(self, group: Sequence[int], speeds: Sequence[float], seconds: float) -> None:
        """Add the speeds of a group that ran together for some seconds; speeds above 1 count as 1.

        Raises ValueError for impossible values; 0 seconds add nothing.
        """
        if len(group) != len(speeds):
            raise ValueError(f"{len(group)} applications have {len(speeds)} speeds")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"the shared run time is 0 seconds or more, not {seconds}")
        for speed in speeds:
            if not 0 <= speed < math.inf:
                raise ValueError(f"a speed is 0 or more, of the speed alone, not {speed}")
        if len(group) < 2 or seconds == 0:
            return
        # Two jobs of one application in a group have the same key, and each counts as a run.
        for view, speed in zip(views_of(group), speeds, strict=True):
            self._seen[view] = _with_run(self._seen.get(view), min(speed, 1.0), seconds)

    def refuse(self, group: Sequence[int], times: int = 1) -> None:
        """Record that these applications ran out of memory together `times` times."""
        key = tuple(sorted(group))
        self._refused[key] = self._refused.get(key, 0) + times

    def restore(self, one: int, others: Sequence[int], seen: SpeedStatistics) -> None:
        """Replace statistics with stored ones; raise ValueError for impossible values."""
        good = 0 <= seen.speed <= 1 and 0 <= seen.spread <= 1 and seen.runs >= 1
        if not good or not 0 < seen.seconds < math.inf or not others:
            raise ValueError(f"{seen} of {one} with {tuple(others)} is impossible")
        self._seen[one, tuple(sorted(others))] = seen

    def seen(self, one: int, others: Sequence[int]) -> SpeedStatistics | None:
        """Return the statistics, or None if these applications never shared a GPU."""
        return self._seen.get((one, tuple(sorted(others))))

    def all_seen(self) -> Iterator[tuple[int, tuple[int, ...], SpeedStatistics]]:
        """Yield each application, its co-runners and the measurement."""
        for (one, others), seen in self._seen.items():
            yield one, others, seen

    def refused(self, group: Sequence[int]) -> bool:
        """Return whether these applications, or some of them, could not run together."""
        return any(contains(group, small) for small in self._refused)

    def all_refused(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the groups that could not run together, in order, and how often."""
        return sorted(self._refused.items())

    def pairs(self, n: int) -> tuple[Floats, Floats]:
        """Return two (n, n) arrays: the speed of i with j, NaN if not measured, and the number of runs."""
        speeds, runs = np.full((n, n), np.nan), np.zeros((n, n))
        for (one, others), seen in self._seen.items():
            if len(others) == 1 and max(one, others[0]) < n:
                speeds[one, others[0]], runs[one, others[0]] = seen.speed, seen.runs
        return speeds, runs

    def measured(self, gpu_model: str, names: Sequence[str], alone_per_s: Sequence[float | None]) -> Measured:
        """Return a table to write to a file; raise ValueError if a name is missing."""
        speeds = {view: seen.speed for view, seen in self._seen.items()}
        for group in self._refused:
            speeds |= dict.fromkeys(views_of(group), 0.0)
        if any(max(one, *others) >= len(names) for one, others in speeds):
            raise ValueError(f"there are more applications than the {len(names)} names")
        return Measured(gpu_model, tuple(names), tuple(alone_per_s), speeds)


def _with_run(seen: SpeedStatistics | None, speed: float, seconds: float) -> SpeedStatistics:
    if seen is None:
        return SpeedStatistics(speed, 0.0, 1, seconds)
    total = seen.seconds + seconds
    mean = seen.speed + (speed - seen.speed) * (seconds / total)
    squares = seen.spread**2 * seen.seconds + seconds * (speed - seen.speed) * (speed - mean)
    return SpeedStatistics(min(mean, 1.0), math.sqrt(max(squares / total, 0.0)), seen.runs + 1, total)
