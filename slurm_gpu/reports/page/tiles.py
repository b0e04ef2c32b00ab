"""The few numbers on top of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.load import Accounts
from slurm_gpu.reports.page.amounts import amount, with_unit
from slurm_gpu.reports.page.document import Tile


def tiles_of(accounts: Accounts) -> Sequence[Tile]:
    """GPU time, its share of what there was, how many ran, how long they waited, how well GPUs were used."""
    jobs = accounts.jobs
    capacity_gpu_h = int(accounts.capacity.mgpu_s.sum()) / MGPU_S_PER_GPU_H
    share = 100 * jobs.total_gpu_h / capacity_gpu_h if capacity_gpu_h > 0 else math.nan
    users = np.unique(jobs.user.codes[jobs.ended & (jobs.user.codes >= 0)])
    waits = jobs.wait_h[jobs.completed & jobs.with_gpus]
    waits = waits[~np.isnan(waits)]
    return (
        Tile("GPU-hours held", amount(jobs.total_gpu_h)),
        Tile("of all GPU time", amount(share), "%"),
        Tile("jobs ended", amount(float(jobs.ended.sum()))),
        Tile("users", amount(float(len(users)))),
        Tile("median wait of GPU jobs", *_wait(float(np.median(waits)) if len(waits) else math.nan)),
        Tile("mean GPU utilisation", amount(_mean_utilisation(jobs)), "%"),
    )


def _wait(wait_h: float) -> tuple[str, str]:
    """A number and its unit."""
    shown, _, unit = with_unit(wait_h, "h").partition("\u00a0")
    return shown, unit


def _mean_utilisation(jobs: JobTable) -> float:
    """Over the GPU time of the runs that were measured."""
    weights = np.where(jobs.measured, jobs.held_gpu_h, 0.0)
    weights = np.nan_to_num(weights, nan=0.0)
    total = float(weights.sum())
    return float((weights * np.nan_to_num(jobs.ugpucore, nan=0.0)).sum()) / total if total > 0 else math.nan
