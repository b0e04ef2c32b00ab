"""The idle GPU time of each measured run, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_gpu.reports.category import Floats, Integers
from slurm_gpu.reports.job_table import JobTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaste:
    """GPU-hours of the measured runs at `rows` of the accounting table, in the period.

    `wasted` is GPU-hours × (1 − utilisation), but at least `no_process`, the GPU-hours without a process.
    `rate` is the charge per GPU-hour; NaN if there is no rate.
    """

    rows: Integers
    allocated: Floats
    no_process: Floats
    wasted: Floats
    rate: Floats


def waste_of(jobs: JobTable) -> RunWaste:
    """Return the waste of the runs with sufficient coverage."""
    rows = np.flatnonzero(jobs.measured & (jobs.allocated_gpu_h > 0))  # NaN if unknown for one part
    allocated = jobs.allocated_gpu_h[rows]
    no_process = np.nan_to_num(jobs.no_process_gpu_h[rows])
    rate = np.divide(jobs.charge[rows], allocated, out=np.full(len(allocated), np.nan), where=allocated > 0)
    return RunWaste(
        rows=rows,
        allocated=allocated,
        no_process=no_process,
        wasted=np.maximum(allocated * (1 - jobs.ugpucore[rows] / 100), no_process),
        rate=rate,
    )
