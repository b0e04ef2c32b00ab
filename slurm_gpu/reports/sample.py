"""Choose a sample of runs for drawing if there are too many to draw."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_gpu.reports.category import Floats, Integers


def evenly(n: int, most: int) -> Integers:
    """Return at most `most` evenly spaced indices below `n`; the choice is deterministic."""
    if n <= most:
        return np.arange(n, dtype=np.int64)
    return (np.arange(most, dtype=np.int64) * n) // most


def with_extremes(columns: Iterable[Floats], n: int, most: int, extremes: int = 400) -> Integers:
    """Return about `most` indices below `n`: an even sample, and the largest values of each column."""
    if n <= most:
        return np.arange(n, dtype=np.int64)
    kept, largest = [evenly(n, most)], min(n, extremes)
    for column in columns:
        known = np.nan_to_num(np.asarray(column, np.float64), nan=-np.inf)
        kept.append(np.argpartition(known, -largest)[-largest:].astype(np.int64))
    return np.unique(np.concatenate(kept))
