"""Derive results from the speeds of several co-runners, from any source, without numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

_JUST_MORE = 1 + 1e-12
# Speeds at the cap pass, regardless of rounding.
_JUST_ONE = 1 - 1e-12


def keeps(speeds: Iterable[float], cap: float) -> bool:
    """Return whether all can run, and no speed is below 1/cap of running alone."""
    return all(speed > 0 and speed * cap >= _JUST_ONE for speed in speeds)


def ends_s(left_s: Sequence[float], speeds_of: Callable[[tuple[int, ...]], Sequence[float]]) -> float:
    """Return when the last of several jobs ends that begin together without further jobs; math.inf if never.

    `left_s` is by member; `speeds_of` returns the speeds of members that run together, in their order.
    """
    here = dict(enumerate(left_s))
    now_s = 0.0
    while here:
        speeds = dict(zip(here, speeds_of(tuple(here)), strict=True))
        if not all(speed > 0 for speed in speeds.values()):
            return math.inf
        step_s = min(here[one] / speed for one, speed in speeds.items())
        now_s += step_s
        here = {
            one: left - step_s * speeds[one]
            for one, left in here.items()
            if left / speeds[one] > step_s * _JUST_MORE
        }
    return now_s
