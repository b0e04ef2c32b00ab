"""GPU utilisation by zone and scale of jobs."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Category, Floats
from slurm_gpu.reports.figure import Figure, FigureTable, Matrix, TableColumn
from slurm_gpu.reports.figures.hours import mean_by
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import percent


def utilisation_by_zone_and_scale(jobs: JobTable) -> Figure:
    """Return the mean GPU utilisation over the GPU time of measured jobs, by zone and scale."""
    shares = jobs.shares
    scales = jobs.scale.names
    cell = shares.zone.codes * len(scales) + shares.of(jobs.scale).codes
    cells = Category([f"{zone} {scale}" for zone in shares.zone.names for scale in scales], cell)
    measured = jobs.measured[shares.run]
    allocated = cells.sums(shares.mgpu_s)
    allocated_measured = cells.sums(np.where(measured, shares.mgpu_s, 0))
    weights = shares.mgpu_s.astype(np.float64)
    core, memory = (
        mean_by(cells, weights, np.where(measured, values[shares.run], np.nan))[:-1]
        for values in (jobs.ugpucore, jobs.ugpumem)
    )
    there = sorted(
        np.flatnonzero(allocated).tolist(),
        key=lambda place: (shares.zone.names[place // len(scales)], place % len(scales)),
    )
    zones = list(dict.fromkeys(shares.zone.names[place // len(scales)] for place in there))
    used = [scale for at, scale in enumerate(scales) if any(place % len(scales) == at for place in there)]
    values = np.full((len(zones), len(used)), np.nan)
    for place in there:
        zone, scale = shares.zone.names[place // len(scales)], scales[place % len(scales)]
        values[zones.index(zone), used.index(scale)] = core[place]
    table = FigureTable(
        name="utilisation_by_zone_and_scale",
        title="GPU utilisation by zone and scale",
        columns=[
            TableColumn("zone", "", "The zone in slurm-gpu.yaml; “other” for nodes without one."),
            TableColumn("scale", "", "Size of the jobs by number of GPUs and nodes."),
            TableColumn("gpu_h", "GPU-hours", "Allocated GPU-hours in the period."),
            TableColumn("measured_gpu_h", "GPU-hours", "GPU-hours of jobs with sufficient coverage."),
            TableColumn("ugpucore", "%", "Mean GPU utilisation over the measured GPU-hours."),
            TableColumn("ugpumem", "%", "Mean GPU memory used over the measured GPU-hours."),
        ],
        data={
            "zone": [shares.zone.names[place // len(scales)] for place in there],
            "scale": [scales[place % len(scales)] for place in there],
            "gpu_h": allocated[there] / MGPU_S_PER_GPU_H,
            "measured_gpu_h": allocated_measured[there] / MGPU_S_PER_GPU_H,
            "ugpucore": core[there],
            "ugpumem": memory[there],
        },
    )
    return Figure(
        id="utilisation-by-zone-and-scale",
        title=table.title,
        reading=_reading(jobs, [place for place in there if not np.isnan(core[place])], core, cells),
        table=table,
        chart=Matrix(
            rows=zones, columns=used, values=values, unit="%", row_title="zone", column_title="scale"
        ),
    )


def _reading(jobs: JobTable, known: list[int], core: Floats, cells: Category) -> str:
    if not known:
        return "No allocated GPU was measured in this period."
    allocated = np.where(jobs.measured, jobs.allocated_mgpu_s, 0)
    mean = float(np.nan_to_num(jobs.ugpucore) @ allocated / max(allocated.sum(), 1))
    best, worst = max(known, key=lambda place: core[place]), min(known, key=lambda place: core[place])
    busy = f"The mean utilisation of allocated GPUs was {percent(mean)}"
    if best == worst:
        return f"{busy}."
    return (
        f"{busy}: highest for {cells.names[best]} ({percent(core[best])}), "
        f"lowest for {cells.names[worst]} ({percent(core[worst])})."
    )
