"""Collect the recent errors of forecasts by group of jobs, to correct later forecasts.

The distribution of a group starts from that of the next wider group, as in `tables`. A change of policy,
capacity or load therefore corrects the forecasts of a partition as soon as some of its jobs have started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_gpu.forecast.samples import KIND, Floats, QueueSamples
from slurm_gpu.forecast.tables import rows_of
from slurm_gpu.forecast.wait_grid import N_BINS, N_ERROR_BINS, around, error_bin_of, smoothed

# Groupings of errors, widest first. Only the last two groupings correct forecasts.
ERROR_ORDER = ("all", KIND, "partition")
_USED = ERROR_ORDER[1:]
# The wider group has the weight of this number of recent groups of similar jobs.
_BORROWED_GROUPS = 20.0


@dataclass(frozen=True, slots=True)
class ErrorTables:
    """Weighted numbers of errors by size, (groups, N_ERROR_BINS) for each grouping in ERROR_ORDER."""

    counts: Mapping[str, Floats]

    def around(self, log2_wait: Floats, samples: QueueSamples) -> Floats:
        """Return distributions (n, N_BINS) of the waits: the forecasts (n) plus errors of similar jobs."""
        mass = np.zeros((len(samples), N_BINS))
        errors = np.full((len(samples), N_ERROR_BINS), 1e-6)
        for name in ERROR_ORDER:
            errors = rows_of(self.counts[name], samples.groups[name]) + _BORROWED_GROUPS * errors
            errors /= errors.sum(axis=1, keepdims=True)
            if name in _USED:
                mass += around(log2_wait, errors) / len(_USED)
        return mass


def error_tables(octaves: Floats, weight: Floats, samples: QueueSamples) -> ErrorTables:
    """Return the tables of errors `octaves` (n) of forecasts for n samples, with their weights (n)."""
    bins, counts = error_bin_of(octaves), {}
    for name in ERROR_ORDER:
        codes = samples.groups[name]
        known = codes >= 0
        n_groups = int(codes.max(initial=-1)) + 1
        cells = np.bincount(codes[known] * N_ERROR_BINS + bins[known], weight[known], n_groups * N_ERROR_BINS)
        counts[name] = smoothed(cells.reshape(n_groups, N_ERROR_BINS).astype(float))
    return ErrorTables(counts)
