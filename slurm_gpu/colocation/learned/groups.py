"""Form groups of a few slots: the virtual slots of the DqnGPU thesis."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


@cache
def groups(n_slots: int, most: int, width: int) -> NDArray[np.intp]:
    """Return the slots of every group of up to `most` slots, (S, width), padded with `n_slots`.

    The first group is empty and represents waiting.
    """
    found = [
        [*group, *[n_slots] * (width - len(group))]
        for size in range(most + 1)
        for group in combinations(range(n_slots), size)
    ]
    out = np.array(found, dtype=np.intp)
    out.flags.writeable = False
    return out
