"""Forecast from tables of the recent waits of similar jobs, without a regression.

The forecast starts from all jobs and proceeds to the narrowest group. Each step combines the histories of the
narrower and the wider group; the wider group has the weight of a few jobs. Groups with little history
therefore still give a stable forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.samples import Codes, Floats, QueueSamples, WaitSamples
from slurm_gpu.forecast.wait_grid import N_BINS, bin_of, distribution, quantile

# Older history is used only if there is nothing newer.
MEMORY_DAYS = 14.0
_HALF_LIFE_DAYS = 4.0
# The wider group has the weight of this number of recent jobs.
_BORROWED_JOBS = 5.0


@dataclass(frozen=True, slots=True)
class WaitTables:
    """Weighted numbers of jobs by wait, (groups, N_BINS) for each grouping, widest first."""

    order: Sequence[str]
    started: Mapping[str, Floats]
    waiting: Mapping[str, Floats]
    """Weighted numbers of jobs that were still waiting or left without starting, by their last known wait."""

    def distribution(self, samples: QueueSamples) -> Floats:
        """Return (n, N_BINS) distributions of the remaining wait of similar jobs."""
        mass = np.full((len(samples), N_BINS), 1.0 / N_BINS)
        for name in self.order:
            started = rows_of(self.started[name], samples.groups[name])
            waiting = rows_of(self.waiting[name], samples.groups[name])
            mass = distribution(started + _BORROWED_JOBS * mass, waiting)
        return mass

    def log2_wait(self, samples: QueueSamples) -> Floats:
        """Return (n) log2 of the median wait in seconds."""
        return np.log2(quantile(self.distribution(samples), 0.5))


def wait_tables(past: WaitSamples, order: Sequence[str], weight: Floats) -> WaitTables:
    """Return the tables of the known past; `weight` contains the weight of each sample."""
    recent = past.age_days <= MEMORY_DAYS
    if not recent.any():
        recent = np.ones(len(past.wait_s), dtype=bool)
    past, weight = past[recent], weight[recent]
    weight = weight * 0.5 ** (past.age_days / _HALF_LIFE_DAYS)
    bins = bin_of(past.wait_s)

    def count(name: str, which: NDArray[np.bool_]) -> Floats:
        codes = past.samples.groups[name]
        n_groups = int(codes.max(initial=-1)) + 1
        cells = np.bincount(codes * N_BINS + bins, weight * which, n_groups * N_BINS)
        return cells.reshape(n_groups, N_BINS).astype(float)

    return WaitTables(
        order=order,
        started={name: count(name, past.started) for name in order},
        waiting={name: count(name, ~past.started) for name in order},
    )


def rows_of(counts: Floats, codes: Codes) -> Floats:
    """Return the rows (n, bins) of `counts` (groups, bins); 0 for unknown groups."""
    known = (codes >= 0) & (codes < len(counts))
    rows = np.zeros((len(codes), counts.shape[1]))
    rows[known] = counts[codes[known]]
    return rows
