"""Write the data of a job as CSV.

Cells of missing values are empty, and 0 is a measured value. Text that spreadsheets would treat as a formula
is escaped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_gpu.monitor.job.percentiles import Percentiles, by_device
from slurm_gpu.text.spreadsheet import defused
from slurm_gpu.wire.answers.runs import NodeWindow, Run, RunTimeline
from slurm_gpu.wire.timeline import SERIES

_DECIMALS = 6


def runs_csv(runs: Sequence[Run], timelines: Mapping[tuple[int, int], RunTimeline]) -> str:
    """Return one row per device of each run that is shown in full.

    The keys of `timelines` are pairs of job_id and submit_s.
    """
    columns: dict[str, None] = dict.fromkeys(
        ("id", "job_id", "submit_s", "start_s", "end_s", "node", "device")
    )
    rows: list[dict[str, Any]] = []
    for run in runs:
        timeline = timelines.get((run.job_id, run.submit_s))
        device_timelines = () if timeline is None or timeline.devices is None else timeline.devices
        for (node, device), metrics in by_device(run.devices or (), device_timelines).items():
            row = {"id": run.id, "job_id": run.job_id, "submit_s": run.submit_s, "start_s": run.start_s}
            row |= {"end_s": run.end_s, "node": node, "device": device}
            rows.append(row | dict(_cells(metrics)))
            columns |= dict.fromkeys(row | dict(_cells(metrics)))
    return write(list(columns), rows)


def timelines_csv(timelines: Iterable[RunTimeline]) -> str:
    """Return one row per device and bin. Values are fractions, as defined in docs/contracts.md, section 1."""
    columns = ("id", "job_id", "submit_s", "node", "device", "at_s", "width_s", *SERIES)
    return write(columns, (row for run in timelines for row in _bins(run)))


def windows_csv(windows: Sequence[NodeWindow]) -> str:
    """Return one row per device and sample time."""
    names = sorted({name for item in windows for name in item.series})
    columns = ("job_id", "node", "segment", "device", "at_s", *names)
    return write(columns, (row for item in windows for row in _moments(item)))


def write(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a header line and the rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row.get(name)) for name in columns})
    return text.getvalue()


def _cells(metrics: Mapping[str, Percentiles]) -> Iterator[tuple[str, float | None]]:
    for name, item in metrics.items():
        yield f"{name}_p25_pct", item.p25
        yield f"{name}_p95_pct", item.p95


def _bins(run: RunTimeline) -> Iterator[dict[str, Any]]:
    for item in run.devices or ():
        timeline = item.timeline
        if timeline is None:
            continue
        series = {name: timeline.fractions(name) for name in SERIES}
        for index in range(timeline.n_bins):
            yield {
                "id": run.id,
                "job_id": run.job_id,
                "submit_s": run.submit_s,
                "node": item.node,
                "device": item.device,
                "at_s": timeline.start_s + index * timeline.width_s,
                "width_s": timeline.width_s,
                **{name: values[index] for name, values in series.items()},
            }


def _moments(window: NodeWindow) -> Iterator[dict[str, Any]]:
    series = {name: window.values(name) for name in window.series}
    for index in range(max(map(len, series.values()), default=0)):
        yield {
            "job_id": window.job_id,
            "node": window.node,
            "segment": window.segment,
            "device": window.device,
            "at_s": window.start_s + index * window.width_s,
            **{name: values[index] for name, values in series.items()},
        }


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return defused(value)
    return round(value, _DECIMALS) if isinstance(value, float) else value
