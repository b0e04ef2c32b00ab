"""Calculate GPU-hours by user, team, account, server type and zone, all with the same total."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Category, Floats
from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn
from slurm_gpu.reports.figures.ranking import bars, largest_first, shown_names
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import gpu_hours, listed, percent, sentence

_NAMED = 3


def gpu_hours_by_user(jobs: JobTable) -> Figure:
    """Return GPU-hours by user."""
    return _by(jobs, "user", jobs.shares.of(jobs.user), jobs.user)


def gpu_hours_by_team(jobs: JobTable) -> Figure:
    """Return GPU-hours by team, as defined in slurm-gpu.yaml."""
    return _by(jobs, "team", jobs.shares.of(jobs.team), jobs.team)


def gpu_hours_by_account(jobs: JobTable) -> Figure:
    """Return GPU-hours by Slurm account."""
    return _by(jobs, "account", jobs.shares.of(jobs.account), jobs.account)


def gpu_hours_by_server_type(jobs: JobTable) -> Figure:
    """Return GPU-hours by server type."""
    return _by(jobs, "server type", jobs.shares.server_type, jobs.server_type)


def gpu_hours_by_zone(jobs: JobTable) -> Figure:
    """Return GPU-hours by zone."""
    return _by(jobs, "zone", jobs.shares.zone, jobs.zone)


def mean_by(column: Category, weights: Floats, values: Floats) -> Floats:
    """Return the weighted mean of the known values by name; the last mean is for rows without a name."""
    known = ~np.isnan(values) & (weights > 0)
    some = column.take(known)
    total, weight = some.sums_and_rest(weights[known] * values[known]), some.sums_and_rest(weights[known])
    means: Floats = np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0)
    return means


def _by(jobs: JobTable, what: str, of_shares: Category, of_runs: Category) -> Figure:
    shares = jobs.shares
    names = shown_names(of_shares)
    allocated = of_shares.sums_and_rest(shares.mgpu_s)
    order = largest_first(names, allocated)
    used = np.where(jobs.measured, jobs.ugpucore, np.nan)[shares.run]
    utilisation = mean_by(of_shares, shares.mgpu_s.astype(np.float64), used)
    charge = of_shares.sums_and_rest(np.nan_to_num(shares.charge))
    ended = of_runs.take(jobs.ended_with_gpus)
    runs = ended.sums_and_rest(np.ones(len(ended), np.int64))
    total = int(allocated.sum())
    hours = allocated[order] / MGPU_S_PER_GPU_H
    key = what.replace(" ", "_")
    shown = [names[place] for place in order]
    table = FigureTable(
        name=f"gpu_hours_by_{key}",
        title=f"GPU-hours by {what}",
        columns=[
            TableColumn(key, "", f"The {what}."),
            TableColumn("gpu_h", "GPU-hours", "Allocated GPUs × time in the period."),
            TableColumn("share_pct", "%", "Share of all GPU-hours in the period."),
            TableColumn(
                "jobs",
                "",
                "Jobs with GPUs that ended in the period.",
            ),
            TableColumn("ugpucore", "%", "Mean GPU utilisation over the GPU time of measured jobs."),
            TableColumn("charge", jobs.currency, "GPU-hours × the rate of the server type, if it has one."),
        ],
        data={
            key: shown,
            "gpu_h": hours,
            "share_pct": 100 * allocated[order] / max(total, 1),
            "jobs": runs[order],
            "ugpucore": utilisation[order],
            "charge": charge[order],
        },
    )
    return Figure(
        id=f"gpu-hours-by-{what.replace(' ', '-')}",
        title=table.title,
        reading=_reading(shown, hours, what),
        table=table,
        chart=bars(shown, {"GPU-hours": hours}, "GPU-hours"),
    )


def _reading(names: list[str], hours: Floats, what: str) -> str:
    if not names:
        return "No GPU was allocated in this period."
    total = float(hours.sum())
    first = [f"{names[i]} {percent(hours[i], total)}" for i in range(min(_NAMED, len(names)))]
    most = "" if len(names) <= _NAMED else f"The largest of {len(names)} {what}s: "
    return sentence(f"{gpu_hours(total)} in total. {most}{listed(first)}.")
