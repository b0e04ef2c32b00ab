"""How far forecasts were from the truth: the interval of the next ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu.forecast.samples import Floats
from slurm_gpu.forecast.wait_grid import spread_of

INTERVAL = 0.8
"""The share of jobs whose wait is to lie within the interval."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of forecasts made earlier: log2 of the truth by what was said, and what each counts for."""

    log2_ratio: Floats
    weight: Floats
    """For what forecasts are judged and corrected by: that of an array with a thousand tasks is one."""
    n_jobs: Floats
    """How many jobs each stands for, recent ones more: an interval is to hold a share of all jobs."""
    n_groups: int
    """How many groups of like jobs these are of: tasks of one array are wrong together."""

    def within(self, factor: float) -> float:
        """The share of forecasts that were not further than `factor` from the truth; NaN of none."""
        total = self.weight.sum()
        near = np.abs(self.log2_ratio) <= np.log2(factor)
        return float((self.weight * near).sum() / total) if total > 0 else float("nan")

    def score(self) -> float:
        """What forecasts are judged by: the mean of the shares within 2x and within 3x."""
        return (self.within(2.0) + self.within(3.0)) / 2

    def spread(self) -> Floats:
        """How errors lie about the forecast, see `waitgrid.spread_of`.

        An array counts for the root of its tasks: between one and all, as they are wrong together, but many.
        """
        return spread_of(self.log2_ratio, np.sqrt(self.weight * self.n_jobs))

    def bounds(self, share: float = INTERVAL) -> tuple[float, float]:
        """Octaves between which `share` of the errors lay, as much of the rest on either side."""
        order = np.argsort(self.log2_ratio)
        total = np.cumsum(self.n_jobs[order])
        place = (total - self.n_jobs[order] / 2) / total[-1]
        low, high = np.interp([(1 - share) / 2, (1 + share) / 2], place, self.log2_ratio[order])
        return float(low), float(high)
