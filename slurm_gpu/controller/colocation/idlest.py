"""Find how little an undisturbed job uses its GPU for some time, such as when it loads, validates or writes.

Low use during such a time is not an effect of the co-runner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

# Shortest duration; each following one is twice as long.
SHORTEST_S = 20.0
# The time for which slurm-gpudbd keeps windows of running jobs.
_LONGEST_S = 600.0


def idlest(util: Sequence[float | None], width_s: float) -> tuple[float, ...]:
    """Return for each k the minimum mean utilisation over any 20·2^k seconds of a run, from its bins.

    No duration exceeds that of the run or ten minutes. A bin below the usual use counts as idle time anywhere
    within the bin, and so does a bin that was not measured.
    """
    known = [one for one in util if one is not None]
    usual = max(median(known), fmean(known)) if known else 0.0
    if not usual > 0:
        return ()
    idle_s = [0.0, *accumulate(max(1 - (one or 0.0) / usual, 0.0) * width_s for one in util)]
    found = []
    seconds = SHORTEST_S
    while seconds <= min(len(util) * width_s, _LONGEST_S):
        n = min(math.ceil(seconds / width_s) + 1, len(util))  # bins that it may overlap
        most_s = max(idle_s[at + n] - idle_s[at] for at in range(len(util) - n + 1))
        found.append(usual * max(seconds - most_s, 0.0) / seconds)
        seconds *= 2
    return tuple(found)


def expected(least: Sequence[float], mean: float, seconds: float) -> float:
    """Return the expected minimum over this many seconds alone, from the measured minima if there are any."""
    if not least or seconds < SHORTEST_S:
        return mean
    at = int(math.log2(seconds / SHORTEST_S))
    return min(mean, least[at]) if at < len(least) else mean
