"""The use of otherwise free GPUs by small low-priority jobs."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from slurm_gpu.reports.capacity import Capacity
from slurm_gpu.reports.category import Integers
from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn, TimeSeries
from slurm_gpu.reports.job_table import NO_GPU, SHARED, SINGLE, JobTable
from slurm_gpu.reports.time_bins import integrals
from slurm_gpu.reports.wording import percent

_LOW, _OTHERS = "small jobs of low priority", "other jobs"


def low_priority_small_jobs(jobs: JobTable, capacity: Capacity, low_priority: Collection[str]) -> Figure:
    """Return the GPUs of small low-priority jobs, and the GPUs of all other jobs.

    A job with at most one GPU has low priority if it is on loan or its QOS is in `low_priority`.
    """
    low_qos = np.isin(
        jobs.qos.codes, [code for code, name in enumerate(jobs.qos.names) if name in low_priority]
    )
    small = jobs.scale.is_(SHARED) | jobs.scale.is_(SINGLE)
    low = small & (low_qos | (jobs.lender.codes >= 0))
    edges = jobs.period.edges_s()
    seconds = capacity.seconds_of(edges)
    there = capacity.in_bins(edges)
    sums: dict[str, Integers] = {}
    running = ~jobs.scale.is_(NO_GPU) & (jobs.wall_h > 0)
    for name, mask in ((_LOW, low & running), (_OTHERS, ~low & running)):
        rows = np.flatnonzero(mask)
        from_s = np.maximum(jobs.start_s[rows], jobs.period.since_s).astype(np.int64)
        wall_s = np.rint(jobs.wall_h[rows] * 3600).astype(np.int64)
        mgpu = jobs.allocated_mgpu_s[rows] // np.maximum(wall_s, 1)
        sums |= integrals(from_s, from_s + wall_s, {name: mgpu}, edges)
    idle = np.maximum(there - sums[_OTHERS], 0)
    filled = np.divide(100 * sums[_LOW], idle, out=np.full(len(idle), np.nan), where=idle > 0)
    allocated = int(jobs.allocated_mgpu_s[low].sum())
    measured = low & jobs.measured
    weights = jobs.allocated_mgpu_s[measured]
    core = float(weights @ jobs.ugpucore[measured] / weights.sum()) if weights.sum() else np.nan
    gpus = {name: values / 1000 / seconds for name, values in sums.items()}
    table = FigureTable(
        name="low_priority_small_jobs",
        title="Small jobs of low priority",
        columns=[
            TableColumn("from_s", "s", f"Start of the {jobs.period.bin_name()}, UTC epoch seconds."),
            TableColumn(
                "low_priority_gpus",
                "",
                "GPUs of jobs that have at most one GPU and are on loan or in a QOS of low priority.",
            ),
            TableColumn("other_gpus", "", "GPUs of all other jobs."),
            TableColumn("capacity_gpus", "", "All GPUs."),
            TableColumn(
                "filled_pct",
                "%",
                "GPUs of small jobs of low priority, as a share of the GPUs that other jobs left free.",
            ),
        ],
        data={
            "from_s": edges[:-1].astype(np.int64),
            "low_priority_gpus": gpus[_LOW],
            "other_gpus": gpus[_OTHERS],
            "capacity_gpus": there / 1000 / seconds,
            "filled_pct": filled,
        },
    )
    reading = "No small job of low priority had a GPU in this period."
    if allocated:
        busy = "" if np.isnan(core) else f", with a GPU utilisation of {percent(core)}"
        reading = (
            f"Small jobs of low priority had {percent(allocated, int(jobs.allocated_mgpu_s.sum()))} of all "
            f"GPU-hours, and {percent(allocated, int(idle.sum()))} of those that other jobs left free{busy}."
        )
    return Figure(
        id="low-priority-small-jobs",
        title=table.title,
        reading=reading,
        table=table,
        chart=TimeSeries(
            edges_s=edges,
            series={_OTHERS: gpus[_OTHERS], _LOW: gpus[_LOW]} if allocated else {},
            unit="GPUs",
            limit=there / 1000 / seconds if allocated else None,
            timezone=jobs.period.timezone,
        ),
    )
