"""Allocated, stranded and free GPUs over time."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.capacity import Capacity
from slurm_gpu.reports.category import Floats, Integers
from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn, TimeSeries
from slurm_gpu.reports.figures.capacity_use import assumption
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.occupancy import OccupancySpans
from slurm_gpu.reports.time_bins import integrals
from slurm_gpu.reports.wording import moment, percent, trimmed

_KINDS = ("allocated", "stranded", "free", "out")


def allocation_over_time(jobs: JobTable, capacity: Capacity, occupancy: OccupancySpans) -> Figure:
    """Return the mean numbers of allocated, stranded, free and out-of-service GPUs per hour, day or week."""
    edges = jobs.period.edges_s()
    seconds = capacity.seconds_of(edges)
    amounts = {kind: getattr(occupancy, kind) for kind in _KINDS}
    sums = integrals(occupancy.from_s, occupancy.to_s, amounts, edges)
    there = capacity.in_bins(edges)
    gpus = {kind: values / 1000 / seconds for kind, values in sums.items()}
    n_gpus = there / 1000 / seconds
    rate = _share(sums["allocated"], there)
    bin_name = jobs.period.bin_name()
    table = FigureTable(
        name="allocation_over_time",
        title="Allocated and stranded GPUs over time",
        columns=[
            TableColumn("from_s", "s", f"Start of the {bin_name}, UTC epoch seconds."),
            TableColumn("allocated_gpus", "", f"Mean number of GPUs allocated to jobs in the {bin_name}."),
            TableColumn(
                "stranded_gpus",
                "",
                "Free GPUs on nodes in service with fewer free CPUs or less free memory per GPU than 90 % of "
                "the jobs on that server type use.",
            ),
            TableColumn("free_gpus", "", "Other free GPUs on nodes in service."),
            TableColumn("out_of_service_gpus", "", "Free GPUs on drained or down nodes."),
            TableColumn("capacity_gpus", "", "All GPUs."),
            TableColumn("allocation_rate_pct", "%", "Share of the capacity that was allocated."),
        ],
        data={
            "from_s": edges[:-1].astype(np.int64),
            "allocated_gpus": gpus["allocated"],
            "stranded_gpus": gpus["stranded"],
            "free_gpus": gpus["free"],
            "out_of_service_gpus": gpus["out"],
            "capacity_gpus": n_gpus,
            "allocation_rate_pct": rate,
        },
    )
    return Figure(
        id="allocation-over-time",
        title=table.title,
        reading=_reading(jobs, sums, int(there.sum()), gpus["stranded"], edges),
        table=table,
        chart=TimeSeries(
            edges_s=edges,
            series={
                "allocated": gpus["allocated"],
                "stranded": gpus["stranded"],
                "free": gpus["free"],
                "out of service": gpus["out"],
            },
            unit="GPUs",
            unused=("free", "out of service"),
            limit=n_gpus,
            timezone=jobs.period.timezone,
        ),
        notes=assumption(capacity, jobs),
    )


def _share(part: Integers, whole: Integers) -> Floats:
    shares: Floats = np.divide(100 * part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return shares


def _reading(jobs: JobTable, sums: dict[str, Integers], there: int, stranded: Floats, edges: Floats) -> str:
    if not there:
        return "There were no GPUs in this period."
    allocated = f"On average, {percent(float(sums['allocated'].sum()), there)} of the GPUs were allocated"
    if not sums["stranded"].sum():
        return f"{allocated}, and none were stranded."
    most = int(np.nanargmax(stranded))
    when = moment(edges[most], jobs.period.timezone, with_hour=jobs.period.bin_name() == "hour")
    share = percent(float(sums["stranded"].sum()), there)
    return (
        f"{allocated} and {share} stranded, with a maximum of {trimmed(stranded[most], 1)} GPUs in the "
        f"{jobs.period.bin_name()} of {when}."
    )
