"""GPUs that were held and did nothing, with what that cost."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn
from slurm_gpu.reports.figures.ranking import bars, shown_names
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.wording import gpu_hours, percent, trimmed


def held_but_idle(jobs: JobTable) -> Figure:
    """By user: GPU-hours without any process, and all in which a GPU did nothing (1 − its utilisation).

    Only of jobs that were measured for long enough: of others nobody can tell.
    """
    judged = np.flatnonzero(jobs.measured & (jobs.held_gpu_h > 0))  # NaN where that is not known of a part
    user = jobs.user.take(judged)
    held = jobs.held_gpu_h[judged]
    bare = np.nan_to_num(jobs.no_process_gpu_h[judged])
    wasted = np.maximum(held * (1 - jobs.ugpucore[judged] / 100), bare)
    rate = np.divide(jobs.charge[judged], held, out=np.full(len(held), np.nan), where=held > 0)
    sums: dict[str, Floats] = {
        "measured_gpu_h": user.sums_and_rest(held),
        "no_process_gpu_h": user.sums_and_rest(bare),
        "wasted_gpu_h": user.sums_and_rest(wasted),
        "no_process_cost": user.sums_and_rest(np.nan_to_num(bare * rate)),
        "wasted_cost": user.sums_and_rest(np.nan_to_num(wasted * rate)),
    }
    names = shown_names(user)
    order = sorted(
        np.flatnonzero(sums["measured_gpu_h"]).tolist(),
        key=lambda place: (-sums["wasted_gpu_h"][place], names[place]),
    )
    shown = {name: values[order] for name, values in sums.items()}
    table = FigureTable(
        name="held_but_idle",
        title="GPUs held but idle",
        columns=[
            TableColumn("user", "", ""),
            TableColumn("measured_gpu_h", "h", "GPU-hours within the period of jobs that were measured."),
            TableColumn("no_process_gpu_h", "h", "Of these, without any process on the GPU."),
            TableColumn(
                "wasted_gpu_h", "h", "Of these, × (1 − GPU utilisation): at least those without a process."
            ),
            TableColumn("no_process_cost", "", "At the rates of the server types."),
            TableColumn("wasted_cost", "", "Likewise."),
        ],
        data={"user": [names[place] for place in order], **shown},
    )
    return Figure(
        id="held-but-idle",
        title=table.title,
        reading=_reading(jobs, {name: float(values.sum()) for name, values in sums.items()}),
        table=table,
        chart=bars(
            [names[place] for place in order],
            {
                "no process": shown["no_process_gpu_h"],
                "idle with a process": shown["wasted_gpu_h"] - shown["no_process_gpu_h"],
            },
            "h",
        ),
        notes=["Only jobs that were measured for long enough are judged."],
    )


def _reading(jobs: JobTable, total: dict[str, float]) -> str:
    held = total["measured_gpu_h"]
    if not held:
        return "Nothing was measured of the GPUs held in this period."

    def amount(kind: str) -> str:
        cost = total[f"{kind}_cost"]
        worth = f" (worth {trimmed(cost, 2)})" if cost else ""
        return f"{percent(total[f'{kind}_gpu_h'], held)}{worth}"

    return (
        f"Of {gpu_hours(held)} that were measured ({percent(held, jobs.total_gpu_h)} of all) GPUs did "
        f"nothing for {amount('wasted')}; for {amount('no_process')} there was not even a process on them."
    )
