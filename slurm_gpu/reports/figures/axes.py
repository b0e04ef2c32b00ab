"""The columns of the accounting table by which jobs are compared."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Axis
from slurm_gpu.reports.job_table import JobTable

AXES = (
    Axis("nNODE", ""),
    Axis("nGPU", ""),
    Axis("WAIT_h", "h"),
    Axis("RUN_h", "h"),
    Axis("uGPUcore", "%"),
    Axis("uGPUmem", "%"),
)


def values_of(jobs: JobTable) -> dict[str, Floats]:
    """Return the values of all runs by axis; utilisation is NaN for runs that are not measured."""
    return {
        "nNODE": jobs.n_nodes,
        "nGPU": jobs.n_gpus,
        "WAIT_h": jobs.wait_h,
        "RUN_h": jobs.run_h,
        "uGPUcore": np.where(jobs.measured, jobs.ugpucore, np.nan),
        "uGPUmem": np.where(jobs.measured, jobs.ugpumem, np.nan),
    }


def most_frequent(jobs: JobTable, most: int) -> list[str]:
    """Return the applications with the most ended jobs."""
    counts = jobs.app.counts(jobs.ended_with_gpus)
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda code: (-counts[code], jobs.app.names[code]))
    return [jobs.app.names[code] for code in order[:most]]
