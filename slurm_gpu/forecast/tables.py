"""Forecasts from quantile tables: what jobs of the same kind waited lately, and nothing learned.

From all jobs to those that are most alike, each step takes what is known of the narrower group, and a few
jobs' worth of the wider one, so that a group with little history does not speak for itself alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.samples import Codes, Floats, QueueSamples, WaitSamples
from slurm_gpu.forecast.wait_grid import N_BINS, bin_of, distribution, likeliest

# What lies further back says nothing of how long the queue is now, as long as there is anything newer.
MEMORY_DAYS = 14.0
_HALF_LIFE_DAYS = 4.0
# As so many recent jobs counts what the wider group says.
_BORROWED_JOBS = 5.0


@dataclass(frozen=True, slots=True)
class WaitTables:
    """For each grouping, the widest first, how many waited how long: (groups, N_BINS) each."""

    order: Sequence[str]
    started: Mapping[str, Floats]
    waiting: Mapping[str, Floats]
    """Of those that still waited, or had left without a start, when last seen."""

    def distribution(self, looks: QueueSamples) -> Floats:
        """(n, N_BINS): how long jobs like these go on to wait."""
        mass = np.full((len(looks), N_BINS), 1.0 / N_BINS)
        for name in self.order:
            started = _rows(self.started[name], looks.groups[name])
            waiting = _rows(self.waiting[name], looks.groups[name])
            mass = distribution(started + _BORROWED_JOBS * mass, waiting)
        return mass

    def log2_wait(self, looks: QueueSamples) -> Floats:
        """(n) log2 of the seconds that are likeliest."""
        return np.log2(likeliest(self.distribution(looks)))


def wait_tables(past: WaitSamples, order: Sequence[str], weight: Floats) -> WaitTables:
    """What is known of the past by group; `weight` is what each look counts for."""
    recent = past.age_days <= MEMORY_DAYS
    if not recent.any():
        recent = np.ones(len(past.wait_s), dtype=bool)
    past, weight = past[recent], weight[recent]
    weight = weight * 0.5 ** (past.age_days / _HALF_LIFE_DAYS)
    bins = bin_of(past.wait_s)

    def count(name: str, which: NDArray[np.bool_]) -> Floats:
        codes = past.looks.groups[name]
        n_groups = int(codes.max(initial=-1)) + 1
        cells = np.bincount(codes * N_BINS + bins, weight * which, n_groups * N_BINS)
        return cells.reshape(n_groups, N_BINS).astype(float)

    return WaitTables(
        order=order,
        started={name: count(name, past.started) for name in order},
        waiting={name: count(name, ~past.started) for name in order},
    )


def _rows(counts: Floats, codes: Codes) -> Floats:
    """(n, N_BINS); 0 for groups that were not there."""
    known = (codes >= 0) & (codes < len(counts))
    rows = np.zeros((len(codes), N_BINS))
    rows[known] = counts[codes[known]]
    return rows
