"""Order and limit the names in a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.reports.category import Category, Floats
from slurm_gpu.reports.figure import Bars
from slurm_gpu.reports.wording import UNNAMED

UNKNOWN_NAME = "(unknown)"
# Number of names in a chart; a line below them shows the sum of all other names. The table lists all names.
MAX_BARS = 20


def shown_names(column: Category, unknown: str = UNKNOWN_NAME) -> list[str]:
    """Return the names of a column for display; the last name is for rows without one."""
    return [*(name if name else UNNAMED for name in column.names), unknown]


def largest_first(names: Sequence[str], values: NDArray[Any]) -> list[int]:
    """Return the indices of nonzero values, the largest first; ties are ordered by name."""
    return sorted(np.flatnonzero(values).tolist(), key=lambda place: (-values[place], names[place]))


def bars(names: Sequence[str], series: dict[str, Floats], unit: str) -> Bars:
    """Return bars for the first MAX_BARS names, and the sum of the others."""
    if len(names) <= MAX_BARS + 1:
        return Bars(labels=names, series=series, unit=unit)
    return Bars(
        labels=names[:MAX_BARS],
        series={name: values[:MAX_BARS] for name, values in series.items()},
        unit=unit,
        n_others=len(names) - MAX_BARS,
        others=float(sum(np.nansum(values[MAX_BARS:]) for values in series.values())),
    )
