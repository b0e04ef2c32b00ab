"""GPU utilisation of each zone by the scale of the jobs there."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Category, Floats
from slurm_gpu.reports.figure import Figure, FigureTable, Matrix, TableColumn
from slurm_gpu.reports.figures.hours import mean_by
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import percent


def utilisation_by_zone_and_scale(jobs: JobTable) -> Figure:
    """The mean over the GPU time of jobs that were measured."""
    shares = jobs.shares
    scales = jobs.scale.names
    cell = shares.zone.codes * len(scales) + shares.of(jobs.scale).codes
    cells = Category([f"{zone} {scale}" for zone in shares.zone.names for scale in scales], cell)
    measured = jobs.measured[shares.run]
    held = cells.sums(shares.mgpu_s)
    held_measured = cells.sums(np.where(measured, shares.mgpu_s, 0))
    weights = shares.mgpu_s.astype(np.float64)
    core, memory = (
        mean_by(cells, weights, np.where(measured, values[shares.run], np.nan))[:-1]
        for values in (jobs.ugpucore, jobs.ugpumem)
    )
    there = sorted(
        np.flatnonzero(held).tolist(),
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
            TableColumn("zone", "", "Of slurm-gpu.yaml; nodes that it does not name are “other”."),
            TableColumn("scale", "", "How many GPUs the jobs had, and whether on several nodes."),
            TableColumn("gpu_h", "h", "GPU-hours held within the period."),
            TableColumn("measured_gpu_h", "h", "Of these, those of jobs that were measured for long enough."),
            TableColumn("ugpucore", "%", "Mean GPU utilisation over the measured GPU-hours."),
            TableColumn("ugpumem", "%", "Mean GPU memory used, likewise."),
        ],
        data={
            "zone": [shares.zone.names[place // len(scales)] for place in there],
            "scale": [scales[place % len(scales)] for place in there],
            "gpu_h": held[there] / MGPU_S_PER_GPU_H,
            "measured_gpu_h": held_measured[there] / MGPU_S_PER_GPU_H,
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
        return "Nothing was measured of the GPUs held in this period."
    held = np.where(jobs.measured, jobs.held_mgpu_s, 0)
    mean = float(np.nan_to_num(jobs.ugpucore) @ held / max(held.sum(), 1))
    best, worst = max(known, key=lambda place: core[place]), min(known, key=lambda place: core[place])
    told = f"GPUs that were held and measured were busy for {percent(mean)} of the time"
    if best == worst:
        return f"{told}."
    return (
        f"{told}: most in {cells.names[best]} ({percent(core[best])}), "
        f"least in {cells.names[worst]} ({percent(core[worst])})."
    )
