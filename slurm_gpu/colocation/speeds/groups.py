"""Check the speeds of jobs that run together against a cap, and compute when the jobs end.

This module does not need numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

_JUST_MORE = 1 + 1e-12
# Tolerance for rounding: speeds exactly at the cap pass.
_JUST_ONE = 1 - 1e-12


def keeps(speeds: Iterable[float], cap: float) -> bool:
    """Return whether all jobs can run together and no speed is below 1/cap."""
    return all(speed > 0 and speed * cap >= _JUST_ONE for speed in speeds)


def end_times_s(
    left_s: Sequence[float], speeds_of: Callable[[tuple[int, ...]], Sequence[float]]
) -> list[float]:
    """Return when each of several jobs ends if all start together and no other job joins.

    `left_s` has one value per job. `speeds_of` takes the indices of the jobs that are still running, and
    returns their speeds. If a speed is 0, the jobs that are still running end at math.inf.
    """
    here = dict(enumerate(left_s))
    found = [math.inf] * len(left_s)
    now_s = 0.0
    while here:
        speeds = dict(zip(here, speeds_of(tuple(here)), strict=True))
        if not all(speed > 0 for speed in speeds.values()):
            return found
        step_s = min(here[one] / speed for one, speed in speeds.items())
        now_s += step_s
        left = {
            one: left - step_s * speeds[one]
            for one, left in here.items()
            if left / speeds[one] > step_s * _JUST_MORE
        }
        for one in here.keys() - left.keys():
            found[one] = now_s
        here = left
    return found


def ends_s(left_s: Sequence[float], speeds_of: Callable[[tuple[int, ...]], Sequence[float]]) -> float:
    """Return when the last of several jobs ends; see `end_times_s`."""
    return max(end_times_s(left_s, speeds_of), default=0.0)
