"""The totals of a period, which the findings compare with the totals of the days before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_gpu.reports.capacity import Capacity
from slurm_gpu.reports.category import Category
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable, gpu_h
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.run_waste import waste_of
from slurm_gpu.reports.wording import UNNAMED

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodTotals:
    """Amounts of a period. Hours are GPU-hours, except for waits.

    `days` is the elapsed part of the period. `wasted_h`, `no_process_h` and `wasted_cost` are sums over
    the measured runs, which used `measured_h`. Waits are those of the runs with GPUs that ended; without such
    runs, their median, 90th percentile and maximum are NaN.
    """

    period: ReportPeriod
    days: float
    allocated_h: float
    capacity_h: float
    capacity_is_assumed: bool
    measured_h: float
    wasted_h: float
    no_process_h: float
    wasted_cost: float
    jobs: int
    users: int
    wait_h: float
    median_wait_h: float
    p90_wait_h: float
    max_wait_h: float
    by_user: Mapping[str, float]
    by_account: Mapping[str, float]


def totals_of(jobs: JobTable, capacity: Capacity) -> PeriodTotals:
    """Return the totals of the runs and nodes of a period."""
    waste = waste_of(jobs)
    ended = jobs.ended_with_gpus
    waits = jobs.wait_h[ended & ~np.isnan(jobs.wait_h)]
    median, p90, longest = (
        np.percentile(waits, (50, 90, 100), method="inverted_cdf").tolist() if len(waits) else [np.nan] * 3
    )
    return PeriodTotals(
        period=jobs.period,
        days=(capacity.until_s - jobs.period.since_s) / _DAY_S,
        allocated_h=jobs.total_gpu_h,
        capacity_h=gpu_h(int(capacity.mgpu_s.sum())),
        capacity_is_assumed=capacity.assumed_to_s is not None,
        measured_h=float(waste.allocated.sum()),
        wasted_h=float(waste.wasted.sum()),
        no_process_h=float(waste.no_process.sum()),
        wasted_cost=float(np.nansum(waste.wasted * waste.rate)),
        jobs=int(ended.sum()),
        users=int((jobs.user.counts(jobs.allocated_mgpu_s > 0) > 0).sum()),
        wait_h=float(waits.sum()),
        median_wait_h=median,
        p90_wait_h=p90,
        max_wait_h=longest,
        by_user=_by_name(jobs, jobs.user),
        by_account=_by_name(jobs, jobs.account),
    )


def _by_name(jobs: JobTable, column: Category) -> dict[str, float]:
    sums = jobs.shares.of(column).sums(jobs.shares.mgpu_s) / MGPU_S_PER_GPU_H
    return {name or UNNAMED: hours for name, hours in zip(column.names, sums.tolist(), strict=True) if hours}
