"""How much of the GPUs was allocated over time, and how many of the free ones were of use to nobody."""

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
    """GPUs allocated, stranded, free and out of service: means of hours, days or weeks."""
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
        title="GPUs allocated and stranded over time",
        columns=[
            TableColumn("from_s", "s", f"When the {bin_name} begins, UTC epoch seconds."),
            TableColumn("allocated_gpus", "", f"GPUs held by jobs, the mean of the {bin_name}."),
            TableColumn(
                "stranded_gpus",
                "",
                "Free GPUs of nodes in service whose free CPUs or memory are less than nine in ten jobs of "
                "that server type take per GPU.",
            ),
            TableColumn("free_gpus", "", "Other free GPUs of nodes in service."),
            TableColumn("out_of_service_gpus", "", "Free GPUs of nodes that are drained or down."),
            TableColumn("capacity_gpus", "", "All GPUs that there were."),
            TableColumn("allocation_rate_pct", "%", "Allocated of the capacity."),
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
        return "No GPU is known of in this period."
    told = f"On average {percent(float(sums['allocated'].sum()), there)} of the GPUs were allocated"
    if not sums["stranded"].sum():
        return f"{told}, and none lay stranded."
    most = int(np.nanargmax(stranded))
    when = moment(edges[most], jobs.period.timezone, with_hour=jobs.period.bin_name() == "hour")
    share = percent(float(sums["stranded"].sum()), there)
    return f"{told} and {share} lay stranded, most of them in the {jobs.period.bin_name()} of {when}: " + (
        f"{trimmed(stranded[most], 1)} GPUs."
    )
