"""What changed from month to month."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.reports.figure import Bars, Figure, FigureTable, TableColumn
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H
from slurm_gpu.reports.months import MonthTotals
from slurm_gpu.reports.wording import hours, percent, trimmed


def month_over_month(months: Sequence[MonthTotals]) -> Figure:
    """GPU-hours, share of capacity, jobs, waiting and utilisation of each calendar month."""
    labels = [f"{month.first:%Y-%m}" for month in months]
    held = np.array([month.held_mgpu_s for month in months], np.float64)
    there = np.array([month.capacity_mgpu_s for month in months], np.float64)
    before = np.append(np.nan, held[:-1]) if len(held) else held
    change = np.divide(100 * (held - before), before, out=np.full(len(held), np.nan), where=before > 0)
    share = np.divide(100 * held, there, out=np.full(len(held), np.nan), where=there > 0)
    table = FigureTable(
        name="month_over_month",
        title="Month over month",
        columns=[
            TableColumn(
                "month", "", "A calendar month at the site; the last one up to the end of the report."
            ),
            TableColumn("gpu_h", "h", "GPUs held × time."),
            TableColumn("change_pct", "%", "Of the GPU-hours, from the month before."),
            TableColumn("capacity_gpu_h", "h", "GPUs that there were × time."),
            TableColumn("share_pct", "%", "Held of the capacity."),
            TableColumn("jobs", "", "Jobs with GPUs that ended."),
            TableColumn("median_wait_h", "h", "For how long half of these waited at most."),
            TableColumn("mean_wait_h", "h", "For how long they waited on average."),
            TableColumn(
                "ugpucore", "%", "Mean GPU utilisation over the GPU time of jobs that were measured."
            ),
        ],
        data={
            "month": labels,
            "gpu_h": held / MGPU_S_PER_GPU_H,
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
        reading=_reading(labels, months, share.tolist(), change.tolist()),
        table=table,
        chart=Bars(
            labels=labels,
            series={"held": held / MGPU_S_PER_GPU_H},
            unit="h",
            total=there / MGPU_S_PER_GPU_H,
        ),
    )


def _reading(
    labels: list[str], months: Sequence[MonthTotals], share: list[float], change: list[float]
) -> str:
    if not months or not months[-1].held_mgpu_s:
        return "No GPU was held in the last month."
    last = months[-1]
    told = f"{labels[-1]}: {percent(share[-1])} of the capacity was held"
    if len(months) > 1 and not np.isnan(change[-1]):
        more = "more" if change[-1] >= 0 else "less"
        told += f", {trimmed(abs(change[-1]), 1)} % {more} GPU-hours than in {labels[-2]}"
    if np.isnan(last.mean_wait_h):
        return f"{told}."
    earlier = months[-2].mean_wait_h if len(months) > 1 else np.nan
    compared = "" if np.isnan(earlier) else f" ({hours(earlier)} the month before)"
    return f"{told}; jobs waited for {hours(last.mean_wait_h)} on average{compared}."
