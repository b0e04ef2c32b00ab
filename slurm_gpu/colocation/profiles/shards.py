"""Estimate, from the nearest profile, how many shards an unknown job needs."""

from __future__ import annotations

import math
from typing import NamedTuple

from slurm_gpu.colocation.profiles.library import OTHER_APPLICATION, Match

# Additional memory as a fraction of the nearest profile's peak, because that peak is only an estimate.
HEADROOM = 0.25


class Shards(NamedTuple):
    """The estimated shards of a job on one GPU."""

    needed: int | None
    """Number of shards that the job needs; None if it is unknown."""
    of: int
    why: str
    """The basis of `needed`, or the reason why it is unknown."""


def shards_of(match: Match, input_size: float | None, of: int, capacity_mib: float) -> Shards:
    """Return how many of a GPU's `of` shards a job with this input needs for its memory.

    There is no estimate if the profile belongs to another application, has a smaller or unknown input, or
    lacks some memory values, since the job may need more memory.
    """
    profile = match.profile
    if match.distance >= OTHER_APPLICATION:
        return Shards(None, of, "the application has no profile")
    gaps_s = sum(one.seconds for one in profile.phases if one.memory_mib is None)
    peak_mib = profile.peak("memory_mib")
    if peak_mib is None or gaps_s:
        why = f"the profile lacks memory values for {gaps_s:.0f} s of {profile.seconds:.0f} s"
        return Shards(None, of, why)
    there = profile.input_size
    if input_size is not None and (there is None or there < input_size):
        what = (
            "the profile's input is unknown"
            if there is None
            else f"the profile has a smaller input, {there:g}"
        )
        return Shards(None, of, what)
    with_headroom_mib = peak_mib * (1 + HEADROOM)
    by = f"at most {peak_mib:.0f} MiB plus {HEADROOM:.0%} headroom, on a GPU with {capacity_mib:.0f} MiB"
    if with_headroom_mib > capacity_mib:
        return Shards(of, of, by)
    return Shards(max(1, math.ceil(with_headroom_mib * of / capacity_mib - 1e-9)), of, by)
