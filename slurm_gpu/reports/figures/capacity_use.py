"""Usage of GPUs by server type, as a share of capacity."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.capacity import Capacity
from slurm_gpu.reports.category import Category, Integers
from slurm_gpu.reports.figure import Bars, Figure, FigureTable, TableColumn
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import listed, moment, percent, sentence


def usage_by_server_type(jobs: JobTable, capacity: Capacity) -> Figure:
    """Return allocated GPU-hours as a share of capacity, which includes out-of-service nodes."""
    allocated, there, out = (
        _by_name(column, values)
        for column, values in (
            (jobs.shares.server_type, jobs.shares.mgpu_s),
            (capacity.server_type, capacity.mgpu_s),
            (capacity.server_type, np.where(capacity.up, 0, capacity.mgpu_s)),
        )
    )
    names = [name for name in allocated.keys() | there.keys() if allocated.get(name, 0) or there.get(name, 0)]
    names.sort(key=lambda name: (-there.get(name, 0), -allocated.get(name, 0), name))
    of_allocated = np.array([allocated.get(name, 0) for name in names], np.int64)
    of_there = np.array([there.get(name, 0) for name in names], np.int64)
    share = np.divide(100 * of_allocated, of_there, out=np.full(len(names), np.nan), where=of_there > 0)
    ended = jobs.server_type.take(jobs.ended_with_gpus)
    runs = dict(zip(ended.names, ended.counts().tolist(), strict=True))
    table = FigureTable(
        name="usage_by_server_type",
        title="Usage by GPU server type",
        columns=[
            TableColumn(
                "server_type", "", "The server type in slurm-gpu.yaml; “other” for nodes without one."
            ),
            TableColumn("gpu_h", "GPU-hours", "Allocated GPU-hours in the period."),
            TableColumn("capacity_gpu_h", "GPU-hours", "All GPUs × time."),
            TableColumn("out_of_service_gpu_h", "GPU-hours", "Capacity of drained or down nodes."),
            TableColumn("share_pct", "%", "Share of the capacity that was allocated."),
            TableColumn(
                "jobs",
                "",
                "Jobs with GPUs that ended in the period, counted for the type with most of their GPU time.",
            ),
        ],
        data={
            "server_type": names,
            "gpu_h": of_allocated / MGPU_S_PER_GPU_H,
            "capacity_gpu_h": of_there / MGPU_S_PER_GPU_H,
            "out_of_service_gpu_h": np.array([out.get(name, 0) for name in names]) / MGPU_S_PER_GPU_H,
            "share_pct": share,
            "jobs": np.array([runs.get(name, 0) for name in names], np.int64),
        },
    )
    return Figure(
        id="usage-by-server-type",
        title=table.title,
        reading=_reading(names, of_allocated.sum(), of_there.sum(), share.tolist()),
        table=table,
        chart=Bars(
            labels=names, series={"allocated": share}, unit="% of capacity", total=np.full(len(names), 100.0)
        ),
        notes=assumption(capacity, jobs),
    )


def assumption(capacity: Capacity, jobs: JobTable) -> list[str]:
    """Return a note if the capacity before the first observation is an assumption."""
    if capacity.assumed_to_s is None:
        return []
    day = moment(min(capacity.assumed_to_s, jobs.period.until_s), jobs.period.timezone, with_hour=False)
    return [f"Nodes have been recorded since {day}. The report assumes the same nodes before that day."]


def _by_name(column: Category, values: Integers) -> dict[str, int]:
    return dict(zip(column.names, column.sums(values).tolist(), strict=True))


def _reading(names: list[str], allocated: int, there: int, share: list[float]) -> str:
    if not there:
        return "There were no GPUs in this period."
    each = [f"{name} {percent(value)}" for name, value in zip(names, share, strict=True)]
    if len(each) == 1:
        return sentence(f"{percent(allocated, there)} of the capacity of {names[0]} was allocated.")
    return sentence(f"{percent(allocated, there)} of the capacity was allocated: {listed(each)}.")
