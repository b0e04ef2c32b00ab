"""Find the minimum GPU utilisation of an undisturbed job over periods of different lengths.

A job uses its GPU less while it loads data, validates or writes. Such low utilisation is not caused by a
co-runner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

# The shortest period; each following period is twice as long.
SHORTEST_S = 20.0
# The time for which slurm-gpudbd stores windows of running jobs.
_LONGEST_S = 600.0


def idlest(util: Sequence[float | None], width_s: float) -> tuple[float, ...]:
    """Return, for each k, the minimum of the mean utilisation over any 20·2^k seconds of a run.

    No period is longer than the run, or longer than ten minutes. `util` contains the utilisation in each bin
    of `width_s` seconds. If the utilisation in a bin is below the usual value or was not measured, the idle
    time may lie anywhere within the bin.
    """
    known = [one for one in util if one is not None]
    usual = max(median(known), fmean(known)) if known else 0.0
    if not usual > 0:
        return ()
    idle_s = [0.0, *accumulate(max(1 - (one or 0.0) / usual, 0.0) * width_s for one in util)]
    found = []
    seconds = SHORTEST_S
    while seconds <= min(len(util) * width_s, _LONGEST_S):
        n = min(math.ceil(seconds / width_s) + 1, len(util))  # bins that the period may overlap
        most_s = max(idle_s[at + n] - idle_s[at] for at in range(len(util) - n + 1))
        found.append(usual * max(seconds - most_s, 0.0) / seconds)
        seconds *= 2
    return tuple(found)


def expected(least: Sequence[float], mean: float, seconds: float) -> float:
    """Return an undisturbed job's expected minimum utilisation over `seconds`; the mean if unknown."""
    if not least or seconds < SHORTEST_S:
        return mean
    at = int(math.log2(seconds / SHORTEST_S))
    return min(mean, least[at]) if at < len(least) else mean
