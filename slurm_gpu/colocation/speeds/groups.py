"""Check a cap and compute ends from the speeds of several co-runners, without numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

_JUST_MORE = 1 + 1e-12
# Tolerance for rounding: speeds exactly at the cap pass.
_JUST_ONE = 1 - 1e-12


def keeps(speeds: Iterable[float], cap: float) -> bool:
    """Return whether all can run together and no speed is below 1/cap of running alone."""
    return all(speed > 0 and speed * cap >= _JUST_ONE for speed in speeds)


def ends_s(left_s: Sequence[float], speeds_of: Callable[[tuple[int, ...]], Sequence[float]]) -> float:
    """Return when the last of several jobs that begin together ends if no other job joins; math.inf if never.

    `left_s` has one value per member; `speeds_of` returns the speeds of the members that run together, in
    order.
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
