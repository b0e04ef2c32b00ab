"""Compute the demand of jobs as fractions of a GPU, for packing that ignores the speeds of pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.profiles.profile import ApplicationProfile

Floats = NDArray[np.float64]

USES = ("util", "sm", "pcie")


def demands(profiles: Sequence[ApplicationProfile], capacity_mib: float) -> Floats:
    """Return the mean utilisation, SM use and link use, and the peak memory, from 0 to 1: (applications, 4).

    A missing value counts as 1 if another application has a value for this use; a column without any value is
    0.
    """
    rows = [[*(profile.mean(use) for use in USES), profile.peak("memory_mib")] for profile in profiles]
    known = np.array(rows, dtype=np.float64)
    if np.isfinite(capacity_mib):
        known[:, -1] /= capacity_mib
    else:
        known[:, -1] = 0.0
    unmeasured = np.isnan(known).all(axis=0)
    return np.where(np.isnan(known), np.where(unmeasured, 0.0, 1.0), known).clip(0.0, 1.0)
