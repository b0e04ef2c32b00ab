"""The groups that can be made of a few slots: virtual slots, as the DqnGPU thesis calls them."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


@cache
def groups(n_slots: int, most: int, width: int) -> NDArray[np.intp]:
    """Return (S, width) slots of each group of at most `most`, the empty one (wait) first, filled up with
    `n_slots`.
    """
    found = [
        [*group, *[n_slots] * (width - len(group))]
        for size in range(most + 1)
        for group in combinations(range(n_slots), size)
    ]
    out = np.array(found, dtype=np.intp)
    out.flags.writeable = False
    return out
