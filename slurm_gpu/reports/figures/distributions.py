"""Cumulative distributions by application."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats, Mask
from slurm_gpu.reports.figure import Cdf, Figure, FigureTable, StepCurve, TableColumn
from slurm_gpu.reports.figures.axes import AXES, most_frequent, values_of
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.wording import percent, sentence

ALL = "all"
_MOST_APPLICATIONS = 8
_MOST_STEPS = 200
_NAMED = 3


def distributions(jobs: JobTable) -> Figure:
    """Return the cumulative distribution of each application's jobs for each axis."""
    rows = jobs.ended_with_gpus
    values = values_of(jobs)
    apps = most_frequent(jobs, _MOST_APPLICATIONS)
    groups = {ALL: rows, **{app: rows & jobs.app.is_(app) for app in apps}}
    curves = {
        axis.name: {name: steps(values[axis.name][mask]) for name, mask in groups.items()} for axis in AXES
    }
    long = [
        (axis, name, some.n, x, 100 * upto)
        for axis, of_axis in curves.items()
        for name, some in of_axis.items()
        for x, upto in zip(some.x.tolist(), some.upto.tolist(), strict=True)
    ]
    table = FigureTable(
        name="distributions",
        title="Distributions by application",
        columns=[
            TableColumn("axis", "", "nNODE, nGPU, WAIT_h and RUN_h (hours), uGPUcore and uGPUmem (%)."),
            TableColumn(
                "application", "", f"The applications with the most jobs; “{ALL}” for all jobs with GPUs."
            ),
            TableColumn("jobs", "", "Jobs that ran, ended in the period and have a value."),
            TableColumn("value", "", "Value in the unit of the axis."),
            TableColumn("share_pct", "%", "Share of these jobs with at most this value."),
        ],
        data={
            "axis": [item[0] for item in long],
            "application": [item[1] for item in long],
            "jobs": np.array([item[2] for item in long], np.int64),
            "value": np.array([item[3] for item in long], np.float64),
            "share_pct": np.array([item[4] for item in long], np.float64),
        },
    )
    return Figure(
        id="distributions",
        title=table.title,
        reading=_reading(values["nNODE"], groups),
        table=table,
        chart=Cdf(axes=[axis for axis in AXES if curves[axis.name][ALL].n], curves=curves),
    )


def steps(values: Floats) -> StepCurve:
    """Return the distribution of the known values in at most _MOST_STEPS steps, with exact shares."""
    known = np.sort(values[~np.isnan(values)])
    last = np.flatnonzero(np.append(known[1:] != known[:-1], True)) if len(known) else np.zeros(0, np.int64)
    if len(last) > _MOST_STEPS:
        last = last[np.linspace(0, len(last) - 1, _MOST_STEPS).round().astype(np.int64)]
    return StepCurve(known[last], (last + 1) / max(len(known), 1), len(known))


def _reading(nodes: Floats, groups: dict[str, Mask]) -> str:
    shares = [(float(np.mean(nodes[mask] >= 2)), name) for name, mask in groups.items() if name != ALL]
    if not shares:
        return "No job of a recognised application used GPUs in this period."
    (share, name), *others = sorted(shares[:_NAMED], key=lambda item: -item[0])
    first = f"{percent(share, 1)} of the jobs of {name} used ≥2 nodes"
    return sentence("; ".join([first, *(f"{name} {percent(share, 1)}" for share, name in others)]) + ".")
