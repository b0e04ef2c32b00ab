"""Allocated but idle GPUs, and their cost."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn
from slurm_gpu.reports.figures.ranking import bars, shown_names
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.run_waste import waste_of
from slurm_gpu.reports.wording import gpu_hours, money, percent, sentence


def allocated_but_idle(jobs: JobTable) -> Figure:
    """Return each user's GPU-hours without a process, and idle GPU-hours (weighted by 1 − utilisation).

    Jobs without sufficient coverage are left out.
    """
    waste = waste_of(jobs)
    user = jobs.user.take(waste.rows)
    sums: dict[str, Floats] = {
        "measured_gpu_h": user.sums_and_rest(waste.allocated),
        "no_process_gpu_h": user.sums_and_rest(waste.no_process),
        "wasted_gpu_h": user.sums_and_rest(waste.wasted),
        "no_process_cost": user.sums_and_rest(np.nan_to_num(waste.no_process * waste.rate)),
        "wasted_cost": user.sums_and_rest(np.nan_to_num(waste.wasted * waste.rate)),
    }
    names = shown_names(user)
    order = sorted(
        np.flatnonzero(sums["measured_gpu_h"]).tolist(),
        key=lambda place: (-sums["wasted_gpu_h"][place], names[place]),
    )
    shown = {name: values[order] for name, values in sums.items()}
    table = FigureTable(
        name="allocated_but_idle",
        title="Allocated but idle GPUs",
        columns=[
            TableColumn("user", "", ""),
            TableColumn("measured_gpu_h", "GPU-hours", "GPU-hours of measured jobs in the period."),
            TableColumn("no_process_gpu_h", "GPU-hours", "GPU-hours without a process on the GPU."),
            TableColumn(
                "wasted_gpu_h",
                "GPU-hours",
                "GPU-hours × (1 − GPU utilisation), but at least no_process_gpu_h.",
            ),
            TableColumn("no_process_cost", jobs.currency, "no_process_gpu_h × rate_per_gpu_hour."),
            TableColumn("wasted_cost", jobs.currency, "wasted_gpu_h × rate_per_gpu_hour."),
        ],
        data={"user": [names[place] for place in order], **shown},
    )
    return Figure(
        id="allocated-but-idle",
        title=table.title,
        reading=_reading(jobs, {name: float(values.sum()) for name, values in sums.items()}),
        table=table,
        chart=bars(
            [names[place] for place in order],
            {
                "no process": shown["no_process_gpu_h"],
                "idle with a process": shown["wasted_gpu_h"] - shown["no_process_gpu_h"],
            },
            "GPU-hours",
        ),
        notes=["Jobs without sufficient coverage are left out."],
    )


def _reading(jobs: JobTable, total: dict[str, float]) -> str:
    allocated = total["measured_gpu_h"]
    if not allocated:
        return "No allocated GPU was measured in this period."

    def amount(kind: str) -> str:
        cost = total[f"{kind}_cost"]
        priced = f" (cost: {money(cost, jobs.currency)})" if cost else ""
        return f"{percent(total[f'{kind}_gpu_h'], allocated)}{priced}"

    return sentence(
        f"{amount('wasted')} of {gpu_hours(allocated)} measured "
        f"({percent(allocated, jobs.total_gpu_h)} of all) were wasted; {amount('no_process')} had no process."
    )
