"""Changes from month to month."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.reports.figure import Bars, Figure, FigureTable, TableColumn
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H
from slurm_gpu.reports.months import MonthTotals
from slurm_gpu.reports.wording import duration, percent, trimmed


def month_over_month(months: Sequence[MonthTotals]) -> Figure:
    """Return GPU-hours, share of capacity, jobs, waits and utilisation by month, the last month first."""
    labels = [f"{month.first:%Y-%m}" for month in months]
    allocated = np.array([month.allocated_mgpu_s for month in months], np.float64)
    there = np.array([month.capacity_mgpu_s for month in months], np.float64)
    before = np.append(np.nan, allocated[:-1]) if len(allocated) else allocated
    change = np.divide(
        100 * (allocated - before), before, out=np.full(len(allocated), np.nan), where=before > 0
    )
    share = np.divide(100 * allocated, there, out=np.full(len(allocated), np.nan), where=there > 0)
    reading = _reading(labels, months, share.tolist(), change.tolist())
    months, labels = months[::-1], labels[::-1]
    allocated, there, change, share = allocated[::-1], there[::-1], change[::-1], share[::-1]
    table = FigureTable(
        name="month_over_month",
        title="Month over month",
        columns=[
            TableColumn(
                "month", "", "A calendar month in the site's time zone; the last month ends with the report."
            ),
            TableColumn("gpu_h", "GPU-hours", "Allocated GPUs × time."),
            TableColumn("change_pct", "%", "Change in GPU-hours from the month before."),
            TableColumn("capacity_gpu_h", "GPU-hours", "All GPUs × time."),
            TableColumn("share_pct", "%", "Share of the capacity that was allocated."),
            TableColumn("jobs", "", "Jobs with GPUs that ended."),
            TableColumn("median_wait_h", "h", "Median wait of these jobs."),
            TableColumn("mean_wait_h", "h", "Mean wait of these jobs."),
            TableColumn("ugpucore", "%", "Mean GPU utilisation over the GPU time of measured jobs."),
        ],
        data={
            "month": labels,
            "gpu_h": allocated / MGPU_S_PER_GPU_H,
            "change_pct": change,
            "capacity_gpu_h": there / MGPU_S_PER_GPU_H,
            "share_pct": share,
            "jobs": np.array([month.runs for month in months], np.int64),
            "median_wait_h": np.array([month.median_wait_h for month in months], np.float64),
            "mean_wait_h": np.array([month.mean_wait_h for month in months], np.float64),
            "ugpucore": np.array([month.ugpucore for month in months], np.float64),
        },
    )
    return Figure(
        id="month-over-month",
        title=table.title,
        reading=reading,
        table=table,
        chart=Bars(
            labels=labels,
            series={"allocated": allocated / MGPU_S_PER_GPU_H},
            unit="GPU-hours",
            total=there / MGPU_S_PER_GPU_H,
        ),
    )


def _reading(
    labels: list[str], months: Sequence[MonthTotals], share: list[float], change: list[float]
) -> str:
    if not months or not months[-1].allocated_mgpu_s:
        return "No GPU was allocated in the last month."
    last = months[-1]
    use = f"In {labels[-1]}, {percent(share[-1])} of the capacity was allocated"
    if len(months) > 1 and not np.isnan(change[-1]):
        more = "more" if change[-1] >= 0 else "fewer"
        use += f", {trimmed(abs(change[-1]), 1)} % {more} GPU-hours than in {labels[-2]}"
    if np.isnan(last.mean_wait_h):
        return f"{use}."
    earlier = months[-2].mean_wait_h if len(months) > 1 else np.nan
    compared = "" if np.isnan(earlier) else f" ({duration(earlier)} the month before)"
    return f"{use}; the mean wait was {duration(last.mean_wait_h)}{compared}."
