"""Parallel coordinates: every job as a line; and the accounting table behind them."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats, Mask
from slurm_gpu.reports.figure import Figure, FigureTable, ParallelCoordinates, TableColumn, Values
from slurm_gpu.reports.figures.axes import AXES, most_frequent, values_of
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.sample import with_extremes
from slurm_gpu.reports.wording import listed, several, trimmed

# More can be told apart by nobody, nor drawn at once.
MOST_LINES = 40_000
_NAMED = 2
_TYPICAL = (5.0, 95.0)
# What is shorter is told in seconds: 0.0 h would be nothing.
_SHORT_H = 0.1


def parallel_coordinates(jobs: JobTable) -> Figure:
    """nNODE, nGPU, WAIT_h, RUN_h, uGPUcore and uGPUmem of the jobs with GPUs that ended in the period."""
    rows = np.flatnonzero(jobs.ended_with_gpus)
    rows = rows[np.argsort(jobs.end_s[rows], kind="stable")]
    values = values_of(jobs)
    drawn = rows[with_extremes([column[rows] for column in values.values()], len(rows), MOST_LINES)]
    notes = []
    if len(drawn) < len(rows):
        notes.append(
            f"{len(drawn):,} of {len(rows):,} jobs are drawn: evenly many over the period, and those with "
            "the largest values."
        )
    return Figure(
        id="parallel-coordinates",
        title="Jobs in parallel coordinates",
        reading=_reading(jobs, values),
        table=accounting_table(jobs),
        chart=ParallelCoordinates(
            axes=AXES,
            values={name: column[drawn] for name, column in values.items()},
            colour="nNODE",
            application=jobs.app.take(drawn),
            labels=jobs.labels(drawn),
            of=len(rows),
        ),
        notes=notes,
    )


def accounting_table(jobs: JobTable) -> FigureTable:
    """The charging log: one row for each run that ended in the period or ran in it."""
    columns: dict[str, tuple[Values, str, str]] = {
        "JobID": (jobs.labels(), "", "As Slurm prints it; a requeued job has a row for each run."),
        "JobName": (jobs.name, "", ""),
        "user": (jobs.user, "", ""),
        "account": (jobs.account, "", "The Slurm account."),
        "team": (jobs.team, "", "The team of the account, by slurm-gpu.yaml."),
        "qos": (jobs.qos, "", ""),
        "partition": (jobs.partition, "", ""),
        "State": (jobs.state, "", ""),
        "Submit": (jobs.submit_s, "s", "UTC epoch seconds, as the following times."),
        "Start": (jobs.start_s, "s", ""),
        "End": (jobs.end_s, "s", ""),
        "nNODE": (jobs.n_nodes, "", "Nodes used."),
        "nGPU": (jobs.n_gpus, "", "GPUs held; asked for, if it never ran."),
        "WAIT_h": (jobs.wait_h, "h", "From when it could have run to its start."),
        "RUN_h": (jobs.run_h, "h", "Of the whole run, without times of suspension."),
        "uGPUcore": (jobs.ugpucore, "%", "Mean GPU utilisation over the run."),
        "uGPUmem": (jobs.ugpumem, "%", "Mean share of GPU memory used over the run."),
        "coverage": (jobs.coverage, "", "The share of the GPU time that was measured."),
        "server_type": (jobs.server_type, "", "Where most of its GPU time was."),
        "zone": (jobs.zone, "", "Likewise."),
        "scale": (jobs.scale, "", ""),
        "application": (jobs.app, "", ""),
        "field": (jobs.app_field, "", ""),
        "lender": (jobs.lender, "", "Whose idle GPUs it borrowed."),
        "gpu_h": (jobs.held_gpu_h, "h", "GPUs held × time within the period, as all that follows."),
        "no_process_gpu_h": (jobs.no_process_gpu_h, "h", "Of these, without any process on the GPU."),
        "energy_kwh": (jobs.energy_kwh, "kWh", "Of its GPUs."),
        "charge": (jobs.charge, "", "GPU-hours × the rate of the server type."),
    }
    return FigureTable(
        name="jobs",
        title="Accounting table",
        columns=[TableColumn(name, unit, about) for name, (_, unit, about) in columns.items()],
        data={name: values for name, (values, _, _) in columns.items()},
    )


def _reading(jobs: JobTable, values: dict[str, Floats]) -> str:
    rows = jobs.ended_with_gpus
    n_users = int((jobs.user.counts(rows) > 0).sum())
    if not n_users:
        return "No job with GPUs ended in this period."
    told = f"{several(int(rows.sum()), 'job', ' with GPUs')} of {several(n_users, 'user')} ended"
    each = [typical(name, values, rows & jobs.app.is_(name)) for name in most_frequent(jobs, _NAMED)]
    return f"{told}; nine in ten of {'; of '.join(each)}." if each else f"{told}."


def typical(name: str, values: dict[str, Floats], rows: Mask) -> str:
    """What nine in ten jobs of an application take: nodes, GPUs, waiting and run time; of `rows`."""

    def ends(axis: str) -> list[float]:
        known = values[axis][rows]
        known = known[~np.isnan(known)]
        return (
            [float(np.percentile(known, at, method="inverted_cdf")) for at in _TYPICAL] if len(known) else []
        )

    def told(found: list[float], decimals: int) -> str:
        return "–".join(dict.fromkeys(trimmed(value, decimals) for value in found)) or "–"

    def between(axis: str, decimals: int) -> str:
        return told(ends(axis), decimals)

    def time_between(axis: str) -> str:
        found = ends(axis)
        if found and 0 < max(found) < _SHORT_H:
            return f"{told([value * 3600 for value in found], 0)} s"
        return f"{told(found, 1)} h"

    return f"{name} take " + listed(
        [
            f"{between('nNODE', 0)} nodes",
            f"{between('nGPU', 2)} GPUs",
            f"wait {time_between('WAIT_h')}",
            f"run {time_between('RUN_h')}",
        ]
    )
