"""How little a job uses its GPU for a while though nobody disturbs it: loading, validating, writing.

Such a while beside another job says nothing of the other one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

SHORTEST_S = 20.0
"""Each next while is twice as long."""
_LONGEST_S = 600.0
"""As far back as slurm-gpudbd keeps the windows of jobs that run."""


def idlest(util: Sequence[float | None], width_s: float) -> tuple[float, ...]:
    """[k] the least mean utilisation that any 20·2^k seconds of a run may have had, by its bins.

    None longer than the run, or than ten minutes. What a bin has less than is usual is taken for time in
    which the job did nothing, as wherever in the bin it may have been; a gap is such time as well.
    """
    known = [one for one in util if one is not None]
    usual = max(median(known), fmean(known)) if known else 0.0
    if not usual > 0:
        return ()
    idle_s = [0.0, *accumulate(max(1 - (one or 0.0) / usual, 0.0) * width_s for one in util)]
    found = []
    seconds = SHORTEST_S
    while seconds <= min(len(util) * width_s, _LONGEST_S):
        n = min(math.ceil(seconds / width_s) + 1, len(util))  # bins that it may touch
        most_s = max(idle_s[at + n] - idle_s[at] for at in range(len(util) - n + 1))
        found.append(usual * max(seconds - most_s, 0.0) / seconds)
        seconds *= 2
    return tuple(found)


def expected(least: Sequence[float], mean: float, seconds: float) -> float:
    """The least that so many seconds of a run alone may have: by its whiles where they are known."""
    if not least or seconds < SHORTEST_S:
        return mean
    at = int(math.log2(seconds / SHORTEST_S))
    return min(mean, least[at]) if at < len(least) else mean
