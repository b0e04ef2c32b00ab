"""GPU-hours on loan, by lender and borrower."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.figure import Figure, FigureTable, Matrix, TableColumn
from slurm_gpu.reports.figures.ranking import shown_names
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import gpu_hours, percent, sentence


def lent_gpu_hours(jobs: JobTable) -> Figure:
    """Return the GPU-hours of runs on borrowed GPUs by owner and borrowing team.

    If several owners lent the GPUs of a run, each is credited with an equal part, because the actual shares
    are not recorded.
    """
    loans = np.flatnonzero((jobs.lender.codes >= 0) & (jobs.allocated_mgpu_s > 0))
    teams = shown_names(jobs.team)
    lenders = [name.split(",") for name in jobs.lender.names]
    found: dict[tuple[str, str], float] = {}
    runs: dict[tuple[str, str], int] = {}
    for code, team, mgpu_s in zip(
        jobs.lender.codes[loans].tolist(),
        jobs.team.codes[loans].tolist(),
        jobs.allocated_mgpu_s[loans].tolist(),
        strict=True,
    ):
        for lender in lenders[code]:
            pair = lender, teams[team]
            found[pair] = found.get(pair, 0.0) + mgpu_s / len(lenders[code]) / MGPU_S_PER_GPU_H
            runs[pair] = runs.get(pair, 0) + 1
    pairs = sorted(found, key=lambda pair: (-found[pair], pair))
    table = FigureTable(
        name="lent_gpu_hours",
        title="Lent GPUs by owner and team",
        columns=[
            TableColumn("lender", "", "The owner of the GPUs."),
            TableColumn("borrower", "", "The team of the job."),
            TableColumn(
                "gpu_h", "GPU-hours", "GPU-hours on loan in the period, divided equally between lenders."
            ),
            TableColumn("jobs", "", "Jobs that used these loans in the period."),
        ],
        data={
            "lender": [lender for lender, _ in pairs],
            "borrower": [borrower for _, borrower in pairs],
            "gpu_h": np.array([found[pair] for pair in pairs], np.float64),
            "jobs": np.array([runs[pair] for pair in pairs], np.int64),
        },
    )
    rows, columns = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    for (lender, borrower), hours in found.items():
        values[rows.index(lender), columns.index(borrower)] = hours
    return Figure(
        id="lent-gpu-hours",
        title=table.title,
        reading=_reading(found, pairs, jobs.total_gpu_h),
        table=table,
        chart=Matrix(
            rows=rows,
            columns=columns,
            values=values,
            unit="GPU-hours",
            row_title="lent by",
            column_title="to",
        ),
    )


def _reading(found: dict[tuple[str, str], float], pairs: list[tuple[str, str]], total_h: float) -> str:
    if not pairs:
        return "No GPUs were lent in this period."
    lent = sum(found.values())
    lender, borrower = pairs[0]
    return sentence(
        f"{gpu_hours(lent)} were on loan, {percent(lent, total_h)} of all GPU-hours. The largest "
        f"part went from {lender} to {borrower}: {gpu_hours(found[pairs[0]])}."
    )
