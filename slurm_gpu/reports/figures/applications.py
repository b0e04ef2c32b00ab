"""Usage by application and by field."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Category, Floats, Integers
from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn
from slurm_gpu.reports.figures.hours import mean_by
from slurm_gpu.reports.figures.ranking import bars, largest_first, shown_names
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import NOT_RECOGNISED, listed, percent

_NAMED = 4


def usage_by_application(jobs: JobTable) -> Figure:
    """Return each application's share of the run time of jobs with GPUs."""
    return _by(jobs, "application", jobs.app)


def usage_by_field(jobs: JobTable) -> Figure:
    """Return each application field's share of the run time of jobs with GPUs."""
    return _by(jobs, "field", jobs.app_field)


def _by(jobs: JobTable, what: str, column: Category) -> Figure:
    # The number of GPUs of a resized run may be known for only some of its parts.
    of_gpus = np.flatnonzero(jobs.with_gpus | (jobs.allocated_mgpu_s > 0))
    some = column.take(of_gpus)
    names = shown_names(column, NOT_RECOGNISED)
    wall_h = some.sums_and_rest(jobs.wall_h[of_gpus])
    allocated = some.sums_and_rest(jobs.allocated_mgpu_s[of_gpus])
    ended = column.take(jobs.ended_with_gpus)
    runs = ended.sums_and_rest(np.ones(len(ended), np.int64))
    users = _users(some, jobs.user.take(of_gpus))
    weights = jobs.allocated_mgpu_s[of_gpus].astype(np.float64)
    core, memory = (
        mean_by(some, weights, np.where(jobs.measured, values, np.nan)[of_gpus])
        for values in (jobs.ugpucore, jobs.ugpumem)
    )
    order = largest_first(names, wall_h)
    shown = [names[place] for place in order]
    share: Floats = 100 * wall_h[order] / max(wall_h.sum(), 1e-9)
    table = FigureTable(
        name=f"usage_by_{what}",
        title=f"Usage by {what}",
        columns=[
            TableColumn(what, "", f"The {what} that was recognised on the job's nodes."),
            TableColumn("run_h", "h", "Run time of jobs with GPUs in the period."),
            TableColumn("share_pct", "%", "Share of the run time of all jobs with GPUs."),
            TableColumn("gpu_h", "GPU-hours", "Allocated GPUs × time in the period."),
            TableColumn("gpu_share_pct", "%", "Share of all GPU-hours."),
            TableColumn("jobs", "", "Jobs with GPUs that ended in the period."),
            TableColumn("users", "", "Users with such jobs in the period."),
            TableColumn("ugpucore", "%", "Mean GPU utilisation over the GPU time of measured jobs."),
            TableColumn("ugpumem", "%", "Mean GPU memory used over the GPU time of measured jobs."),
        ],
        data={
            what: shown,
            "run_h": wall_h[order],
            "share_pct": share,
            "gpu_h": allocated[order] / MGPU_S_PER_GPU_H,
            "gpu_share_pct": 100 * allocated[order] / max(int(allocated.sum()), 1),
            "jobs": runs[order],
            "users": users[order],
            "ugpucore": core[order],
            "ugpumem": memory[order],
        },
    )
    return Figure(
        id=f"usage-by-{what}",
        title=table.title,
        reading=_reading(shown, share),
        table=table,
        chart=bars(shown, {"share of run time": share}, "%"),
    )


def _users(column: Category, user: Category) -> Integers:
    """Return the number of distinct users per name; the last value is for rows without a name."""
    n_names = len(column.names) + 1
    pairs = np.unique((column.codes.astype(np.int64) % n_names) * (len(user.names) + 1) + user.codes + 1)
    return np.bincount(pairs // (len(user.names) + 1), minlength=n_names).astype(np.int64)


def _reading(names: list[str], share: Floats) -> str:
    if not names:
        return "No job with GPUs ran in this period."
    each = [
        f"{percent(value)} for {name}" for name, value in zip(names[:_NAMED], share.tolist(), strict=False)
    ]
    first, *others = each
    first = f"The largest share of the run time of jobs with GPUs was {first}"
    return f"{first}, followed by {listed(others)}." if others else f"{first}."
