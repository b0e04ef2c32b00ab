"""Names in the order in which a figure shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.reports.category import Category, Floats
from slurm_gpu.reports.figure import Bars

UNNAMED = "(none)"
UNKNOWN_NAME = "(unknown)"
# So many names are drawn; what all others have together is one more bar. The table has all.
MOST_BARS = 20


def shown_names(column: Category, unknown: str = UNKNOWN_NAME) -> list[str]:
    """The names of a column as people read them, and at the end that of rows without one."""
    return [*(name if name else UNNAMED for name in column.names), unknown]


def largest_first(names: Sequence[str], values: NDArray[Any]) -> list[int]:
    """The places of values that are not 0, the largest first and by name among equals."""
    return sorted(np.flatnonzero(values).tolist(), key=lambda place: (-values[place], names[place]))


def bars(names: Sequence[str], series: dict[str, Floats], unit: str) -> Bars:
    """The first MOST_BARS, and the sum of the rest."""
    if len(names) <= MOST_BARS + 1:
        return Bars(labels=names, series=series, unit=unit)
    rest = f"{len(names) - MOST_BARS} others"
    return Bars(
        labels=[*names[:MOST_BARS], rest],
        series={
            name: np.append(values[:MOST_BARS], np.nansum(values[MOST_BARS:]))
            for name, values in series.items()
        },
        unit=unit,
    )
