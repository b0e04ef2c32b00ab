"""Parallel coordinates with a line for each job, and the accounting table."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats, Mask
from slurm_gpu.reports.figure import Figure, FigureTable, ParallelCoordinates, TableColumn, Values
from slurm_gpu.reports.figures.axes import AXES, most_frequent, values_of
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.sample import with_extremes
from slurm_gpu.reports.wording import duration, sentence, several, trimmed

# The maximum number of lines. More lines could be neither distinguished nor drawn quickly.
MAX_LINES = 40_000
_NAMED = 2
_TYPICAL = (5.0, 95.0)
# For fewer jobs, these percentiles are the minimum and the maximum.
_MANY = 20


def parallel_coordinates(jobs: JobTable) -> Figure:
    """Return a plot of nNODE, nGPU, WAIT_h, RUN_h, uGPUcore and uGPUmem for ended jobs with GPUs."""
    rows = np.flatnonzero(jobs.ended_with_gpus)
    rows = rows[np.argsort(jobs.end_s[rows], kind="stable")]
    values = values_of(jobs)
    drawn = rows[with_extremes([column[rows] for column in values.values()], len(rows), MAX_LINES)]
    notes = []
    if len(drawn) < len(rows):
        notes.append(
            f"The plot shows {len(drawn):,} of {len(rows):,} jobs: an even sample over the period, and "
            "the jobs with the largest values."
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
    """Return the accounting table: one row for each run that ended in the period or ran in it."""
    columns: dict[str, tuple[Values, str, str]] = {
        "JobID": (jobs.labels(), "", "Slurm's job ID; a requeued job has a row for each run."),
        "JobName": (jobs.name, "", ""),
        "user": (jobs.user, "", ""),
        "account": (jobs.account, "", "The Slurm account."),
        "team": (jobs.team, "", "The team of the account in slurm-gpu.yaml."),
        "qos": (jobs.qos, "", ""),
        "partition": (jobs.partition, "", ""),
        "State": (jobs.state, "", ""),
        "Submit": (jobs.submit_s, "s", "Time in UTC epoch seconds, as in the next two columns."),
        "Start": (jobs.start_s, "s", ""),
        "End": (jobs.end_s, "s", ""),
        "nNODE": (jobs.n_nodes, "", "Nodes used."),
        "nGPU": (jobs.n_gpus, "", "Allocated GPUs; requested GPUs if the job never ran."),
        "WAIT_h": (jobs.wait_h, "h", "Time from becoming eligible to the start."),
        "RUN_h": (jobs.run_h, "h", "Time from start to end, excluding suspension."),
        "uGPUcore": (jobs.ugpucore, "%", "Mean GPU utilisation over the run."),
        "uGPUmem": (jobs.ugpumem, "%", "Mean share of GPU memory used over the run."),
        "coverage": (jobs.coverage, "", "The measured share of the GPU time."),
        "server_type": (jobs.server_type, "", "The server type with most of the run's GPU time."),
        "zone": (jobs.zone, "", "The zone with most of the run's GPU time."),
        "scale": (jobs.scale, "", ""),
        "application": (jobs.app, "", ""),
        "field": (jobs.app_field, "", ""),
        "lender": (jobs.lender, "", "The owner of the GPUs on loan."),
        "gpu_h": (
            jobs.allocated_gpu_h,
            "GPU-hours",
            "Allocated GPUs × time in the period. The next three columns also refer to the period.",
        ),
        "no_process_gpu_h": (jobs.no_process_gpu_h, "GPU-hours", "GPU-hours without a process on the GPU."),
        "energy_kwh": (jobs.energy_kwh, "kWh", "Energy used by the GPUs."),
        "charge": (jobs.charge, jobs.currency, "GPU-hours × rate_per_gpu_hour of the server type."),
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
    ended = f"{several(int(rows.sum()), 'job', ' with GPUs')} of {several(n_users, 'user')} ended"
    each = [typical(name, values, rows & jobs.app.is_(name)) for name in most_frequent(jobs, _NAMED)]
    return " ".join(sentence(f"{one}.") for one in (ended, *each))


def typical(name: str, values: dict[str, Floats], rows: Mask) -> str:
    """Describe the central 90 % of an application's nodes, GPUs, waits and run times among `rows`.

    The central 90 % of a few jobs are all of them.
    """

    def ends(axis: str) -> list[float]:
        known = values[axis][rows]
        known = known[~np.isnan(known)]
        return (
            [float(np.percentile(known, at, method="inverted_cdf")) for at in _TYPICAL] if len(known) else []
        )

    def ranged(found: list[float], decimals: int) -> str:
        return "–".join(dict.fromkeys(trimmed(value, decimals) for value in found)) or "–"

    def number_of(axis: str, decimals: int, noun: str) -> str:
        found = ranged(ends(axis), decimals)
        return f"{found} {noun}" if found == "1" else f"{found} {noun}s"

    def time_between(axis: str) -> str:
        return "–".join(dict.fromkeys(map(duration, ends(axis)))) or "–"

    n_jobs = int(rows.sum())
    which = "90 % of the jobs" if n_jobs >= _MANY else f"all {n_jobs} jobs" if n_jobs > 1 else "the only job"
    return (
        f"{which} of {name} used {number_of('nNODE', 0, 'node')} and {number_of('nGPU', 2, 'GPU')}, "
        f"waited {time_between('WAIT_h')} and ran {time_between('RUN_h')}"
    )
