"""Estimate the shards of an unknown job from the nearest profile."""

from __future__ import annotations

import math
from typing import NamedTuple

from slurm_gpu.colocation.profiles.library import OTHER_APPLICATION, Match

# Additional memory, relative to that of the nearest profile, which is only an estimate.
HEADROOM = 0.25


class Shards(NamedTuple):
    """Shards of one GPU."""

    needed: int | None
    """Number of shards that the job needs; None if it is unknown."""
    of: int
    why: str
    """The basis of `needed`, or the reason why it is unknown."""


def shards_of(match: Match, input_size: float | None, of: int, capacity_mib: float) -> Shards:
    """Return the shards for the memory of a job with this input, on a GPU with `of` shards and this capacity.

    There is no estimate from a profile of another application, of a smaller input, or with partly measured
    memory, since the job may need more.
    """
    profile = match.profile
    if match.distance >= OTHER_APPLICATION:
        return Shards(None, of, "this application has no profile")
    gaps_s = sum(one.seconds for one in profile.phases if one.memory_mib is None)
    peak_mib = profile.peak("memory_mib")
    if peak_mib is None or gaps_s:
        return Shards(None, of, f"its memory was not measured for {gaps_s:.0f} s of {profile.seconds:.0f} s")
    there = profile.input_size
    if input_size is not None and (there is None or there < input_size):
        what = "its input is unknown" if there is None else f"it had a smaller input, {there:g}"
        return Shards(None, of, what)
    with_headroom_mib = peak_mib * (1 + HEADROOM)
    by = f"at most {peak_mib:.0f} MiB plus {HEADROOM:.0%}, of {capacity_mib:.0f} MiB"
    if with_headroom_mib > capacity_mib:
        return Shards(of, of, by)
    return Shards(max(1, math.ceil(with_headroom_mib * of / capacity_mib - 1e-9)), of, by)
