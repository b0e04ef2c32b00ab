"""Render the tables of `slurm-gpu top`: the GPUs of each node, and the jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from slurm_gpu.cli.cluster.top_order import mean_util
from slurm_gpu.monitor.cluster.overview import ShownJob, ShownRow
from slurm_gpu.text.cells import GAP, count, number, percent, positions, span, text
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.sparkline import sparkline
from slurm_gpu.text.text_grid import GridColumn, grid

GOOD, BUSY, WARN, BAD, FAINT = "green", "blue", "yellow", "red", "dim"
# Up to this many GPUs of a job have a bar each.
_SIGNS = 8
# The minimum width, in columns, at which the tables show GPU types and partitions.
_WIDE = 100
_TYPE, _PARTITION = "TYPE", "PARTITION"
_NODE_COLUMNS: tuple[GridColumn, ...] = (
    GridColumn(title="NODE", least=8),
    GridColumn(title="STATE", least=7, spare=2),
    GridColumn(title=_TYPE, least=6),
    GridColumn(title="GPU", least=5),
    GridColumn(title="USER", least=6),
    GridColumn(title="JOB", least=6),
    GridColumn(title="UTIL %", least=9, spare=4),
    GridColumn(title="MEM %", right=True, spare=1),
    GridColumn(title="FREES IN", right=True),
)
_JOB_COLUMNS: tuple[GridColumn, ...] = (
    GridColumn(title="JOB", least=6),
    GridColumn(title="NAME", least=6, spare=2),
    GridColumn(title="USER", least=6),
    GridColumn(title="ACCOUNT", least=7, spare=1),
    GridColumn(title=_PARTITION, least=6),
    GridColumn(title="STATE", least=7, spare=4),
    GridColumn(title="GPUS", right=True, spare=5),
    GridColumn(title="UTIL %", right=True, spare=3),
    GridColumn(title="ELAPSED/LIMIT", right=True),
    GridColumn(title="NODES OR REASON", least=8),
)


def node_lines(
    rows: Sequence[ShownRow], now_s: float, with_alert: frozenset[int], width: int | None
) -> list[Text]:
    """Return the heading and a line for each row of GPUs; a node is named in the first of its rows."""
    before: Sequence[ShownRow | None] = [None, *rows]
    cells = [
        _node_cells(shown, now_s, with_alert, names_node=above is None or shown.row.nodes != above.row.nodes)
        for above, shown in zip(before, rows, strict=False)
    ]
    return _grid(_NODE_COLUMNS, cells, width, _TYPE)


def job_lines(
    jobs: Sequence[ShownJob], now_s: float, with_alert: frozenset[int], width: int | None
) -> list[Text]:
    """Return the heading and a line for each job."""
    cells = [_job_cells(shown, now_s, with_alert) for shown in jobs]
    return _grid(_JOB_COLUMNS, cells, width, _PARTITION)


def _grid(
    columns: Sequence[GridColumn], cells: Sequence[Sequence[Text]], width: int | None, if_wide: str
) -> list[Text]:
    if width is not None and width < _WIDE:
        shown = [index for index, column in enumerate(columns) if column.title != if_wide]
        columns = [columns[index] for index in shown]
        cells = [[row[index] for index in shown] for row in cells]
    return grid(columns, cells, width)


def _job_cells(shown: ShownJob, now_s: float, with_alert: frozenset[int]) -> list[Text]:
    job, util = shown.job, mean_util(shown.devices)
    is_pending = job.state == "PENDING"
    marked = job.job_id in with_alert
    elapsed = None if is_pending or job.start_s is None else max(0.0, now_s - job.start_s)
    where = compress(shown.nodes) if shown.nodes else job.reason
    n_gpus = f"{count(job.n_gpus)}" + (f"×{job.n_tasks}" if job.n_tasks > 1 else "")
    return [
        Text(job.id + ("!" if marked else ""), style=WARN if marked else ""),
        Text(text(job.name)),
        Text(text(job.user)),
        Text(text(job.account)),
        Text(text(job.partition)),
        Text(job.state.lower(), style=FAINT if is_pending else ""),
        Text(n_gpus),
        Text(number(util), style=WARN if util == 0 else ""),
        Text(f"{span(elapsed)}/{span(job.time_limit_s)}"),
        Text(text(where), style=FAINT if is_pending else ""),
    ]


def _node_cells(shown: ShownRow, now_s: float, with_alert: frozenset[int], *, names_node: bool) -> list[Text]:
    row, job = shown.row, shown.row.job
    name = text(compress(row.nodes)) if names_node else ""
    state = Text(row.state if names_node else "", style="" if row.in_service else WARN)
    kind = Text(text(row.gpu_type) if row.gpu_type else "")
    where = Text(positions(row.gpus) + (" part" if row.shared else ""))
    if job is None:
        if not row.in_service:
            owner = Text("out of service", style=WARN)
        elif row.n_free == len(row.gpus):
            owner = Text("free", style=GOOD)
        else:
            owner = Text(f"{row.n_free} free", style=GOOD if row.n_free else "")
        return [Text(name), state, kind, where, owner, Text(), Text(), Text(), Text()]
    marked = job.job_id in with_alert
    return [
        Text(name),
        state,
        kind,
        where,
        Text(text(job.user)),
        Text(job.id + ("!" if marked else ""), style=WARN if marked else ""),
        _utilisation(shown),
        Text(_mean_percent([device.mem_used_frac for device in shown.devices])),
        Text(_frees(row.frees_s, job.state, now_s)),
    ]


def _utilisation(shown: ShownRow) -> Text:
    """Return the mean utilisation of the measured GPUs, and a bar for each GPU if there are several."""
    values, mean = [device.util_pct for device in shown.devices], mean_util(shown.devices)
    if mean is None:
        return Text(GAP)
    signs = sparkline([None if value is None else value / 100 for value in values], _SIGNS)
    line = Text(f"{number(mean):>3}", style=WARN if mean == 0 else "")
    return line.append(f" {signs}", style=FAINT if mean == 0 else BUSY) if len(values) > 1 else line


def _mean_percent(fractions: Sequence[float | None]) -> str:
    measured = [fraction for fraction in fractions if fraction is not None]
    return percent(math.fsum(measured) / len(measured) if measured else None, 0)


def _frees(frees_s: int | None, state: str, now_s: float) -> str:
    if state != "RUNNING":
        return state.lower()
    return "no limit" if frees_s is None else span(max(0.0, frees_s - now_s))
