"""Draw the timeline of a quantity in one line of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return at most `width` blocks for fractions (0–1); each block is the mean of several values.

    All blocks except the last average the same number of values. The lowest block represents 0, and a dot
    marks missing values.
    """
    per_sign = values_per_sign(len(values), width)
    return "".join(_sign(values[at : at + per_sign]) for at in range(0, len(values), per_sign))


def values_per_sign(n_values: int, width: int) -> int:
    """Return the number of values that each character of a sparkline represents."""
    return max(1, math.ceil(n_values / width))


def _sign(values: Sequence[float | None]) -> str:
    measured = [value for value in values if value is not None]
    if not measured:
        return GAP
    fraction = min(max(math.fsum(measured) / len(measured), 0.0), 1.0)
    return BLOCKS[min(int(fraction * len(BLOCKS)), len(BLOCKS) - 1)]
