"""Render an overview as the lines of styled text that `slurm-gpu top` shows."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from rich.text import Text

from slurm_gpu.alerts.alert import in_words
from slurm_gpu.monitor.cluster.overview import JobAlert, Overview, ShownRow
from slurm_gpu.monitor.cluster.reasons import meaning
from slurm_gpu.monitor.cluster.summary import GpuType, StateOfNodes
from slurm_gpu.text.cells import GAP, count, gpus, number, percent, positions, span, text
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.sparkline import sparkline
from slurm_gpu.text.text_grid import GridColumn, grid
from slurm_gpu.text.units import counted

_GOOD, _BUSY, _WARN, _BAD, _FAINT = "green", "blue", "yellow", "red", "dim"
# An older state is marked, because slurm-gpudbd polls slurmctld more often than this.
_STALE_S = 60.0
# Up to this many GPUs of a job have a bar each.
_SIGNS = 8
# Maximum number of lines of each kind above the table.
_FEW = 5
_MANY_USERS = 8
# Minimum number of rows of the table; lines above the table are cut if necessary.
_LEAST_ROWS = 5
_BAR = 24
_WIDE = 100
"""The minimum width, in columns, at which the table shows GPU types."""
_WIDEST = 120
"""The minimum width at which the table shows accounts and names of jobs."""
_LEAST_PENDING = 3
"""Pending jobs are listed below the table if at least this number of them fits."""

_TYPE = "TYPE"
_ACCOUNT, _NAME = "ACCOUNT", "NAME"
_COLUMNS: tuple[GridColumn, ...] = (
    GridColumn(title="NODE", least=8),
    GridColumn(title="STATE", least=7, spare=2),
    GridColumn(title=_TYPE, least=6),
    GridColumn(title="GPU", least=5),
    GridColumn(title="USER", least=6),
    GridColumn(title=_ACCOUNT, least=7, spare=6),
    GridColumn(title="JOB", least=6),
    GridColumn(title=_NAME, least=8, spare=5),
    GridColumn(title="UTIL %", least=9, spare=4),
    GridColumn(title="MEM %", right=True, spare=1),
    GridColumn(title="FREES IN", right=True),
)
_PENDING_COLUMNS: tuple[GridColumn, ...] = (
    GridColumn(title="PENDING JOB", least=11),
    GridColumn(title="USER", least=6),
    GridColumn(title="ACCOUNT", least=7, spare=3),
    GridColumn(title="NAME", least=8, spare=2),
    GridColumn(title="GPUS", right=True),
    GridColumn(title="PENDING FOR", right=True, spare=1),
    GridColumn(title="STARTS IN", right=True),
    GridColumn(title="WHY", least=10),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleReason:
    """The reason why the screen is stale, and the wall time of the last answer."""

    why: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The lines, and the part of the table that they show."""

    lines: Sequence[Text]
    first: int
    shown: int
    rows: int


def draw(
    overview: Overview,
    now_s: float,
    zone: ZoneInfo,
    *,
    width: int | None = None,
    height: int | None = None,
    first: int = 0,
    stale: StaleReason | None = None,
    status: str = "",
    help_lines: Sequence[str] = (),
) -> Screen:
    """Return the screen; with `height`, return only what fits, and start the table at row `first`.

    If `height` is given, pending jobs fill the space below the table, and the last line contains the rows
    that are shown and `status`. `help_lines` precede the table.
    """
    few = _FEW if height is not None else None
    head = list(_head(overview, now_s, zone, stale, few, width))
    if height is not None:
        head = head[: max(3, height - _LEAST_ROWS - 3 - len(help_lines))]
    head += [Text(line, style=_FAINT) for line in help_lines]
    for line in head:
        if width is not None:
            line.truncate(width, overflow="ellipsis")
    rows = overview.rows
    height_left = len(rows) if height is None else max(1, height - len(head) - 3)
    first = max(0, min(first, len(rows) - height_left))
    page = rows[first : first + height_left]
    with_alert = frozenset(shown.alert.job_id for shown in overview.alerts or ())
    before: Sequence[ShownRow | None] = [None, *page]
    cells = [
        _cells(shown, now_s, with_alert, names_node=above is None or shown.row.nodes != above.row.nodes)
        for above, shown in zip(before, page, strict=False)
    ]
    columns = _COLUMNS
    hidden = set()
    if width is not None and width < _WIDE:
        hidden = {_TYPE, _ACCOUNT, _NAME}
    elif width is None or width < _WIDEST:
        hidden = {_ACCOUNT, _NAME}
    if hidden:
        columns = tuple(column for column in _COLUMNS if column.title not in hidden)
        cells = [
            [cell for column, cell in zip(_COLUMNS, row, strict=True) if column.title not in hidden]
            for row in cells
        ]
    lines = [*head, Text(), *grid(columns, cells, width)]
    if height is not None:
        foot = _foot(first, len(page), len(rows), status)
        if width is not None:
            foot.truncate(width)
        below = _pending(overview, now_s, height_left - len(page), width)
        lines += [*below, *([Text()] * (height_left - len(page) - len(below))), foot]
    return Screen(lines=lines, first=first, shown=len(page), rows=len(rows))


def _pending(overview: Overview, now_s: float, height: int, width: int | None) -> Sequence[Text]:
    """Return the table of pending jobs that fits into `height` lines; () if too few fit."""
    fits = height - 2  # an empty line and the heading
    if not overview.pending or fits < min(_LEAST_PENDING, len(overview.pending)):
        return ()
    cells = [
        [
            Text(job.id),
            Text(text(job.user)),
            Text(text(job.account)),
            Text(text(job.name) if job.name else ""),
            Text(count(None if job.n_gpus is None else job.n_gpus * job.n_tasks)),
            Text(GAP if job.submit_s is None else span(max(0.0, now_s - job.submit_s))),
            Text(span(job.start_s - now_s) if job.start_s is not None and job.start_s > now_s else GAP),
            Text(text(meaning(job.reason) or job.reason)),
        ]
        for job in overview.pending[:fits]
    ]
    return [Text(), *grid(_PENDING_COLUMNS, cells, width)]


def _head(
    overview: Overview,
    now_s: float,
    zone: ZoneInfo,
    stale: StaleReason | None,
    few: int | None,
    width: int | None,
) -> Iterator[Text]:
    at = dt.datetime.fromtimestamp(overview.as_of_s, zone)
    line = Text(overview.cluster, style="bold").append(f"  {at:%Y-%m-%d %H:%M:%S}", style="not bold")
    if stale is not None:
        yield line
        yield Text(f"! {span(max(0.0, now_s - stale.since_s))} old: {text(stale.why)}", style=_BAD)
    else:
        age_s = now_s - overview.as_of_s
        if age_s > _STALE_S:
            line.append(f"  slurmctld last answered {span(age_s)} ago", style=_WARN)
        yield line
    yield from _type_lines(overview.types, now_s, _BAR if width is None else max(4, min(_BAR, width - 54)))
    yield from _limited(list(_node_lines(overview.nodes)), few, "more: slurm-gpu nodes")
    yield from _waiting(overview, now_s, few)
    if overview.users:
        yield Text("Users     " + _users(overview.users, None if width is None else width - 10))
    if overview.alerts:
        alerts = [_alert_line(shown, now_s) for shown in overview.alerts]
        yield from _limited(alerts, few, "more jobs need attention")


def _users(users: Sequence[tuple[str, float]], width: int | None) -> str:
    """Return as many users as fit, and the number of the remaining users."""
    line = ""
    for most in range(min(_MANY_USERS, len(users)), 0, -1):
        parts = [f"{text(user)} {count(n)}" for user, n in users[:most]]
        if rest := users[most:]:
            parts.append(f"{len(rest)} more {count(sum(n for _, n in rest))}")
        line = " · ".join(parts)
        if width is None or len(line) <= width:
            break
    return line


def _type_lines(types: Sequence[GpuType], now_s: float, bar: int) -> Iterator[Text]:
    wide = max((len(kind.name or "GPUs") for kind in types), default=0)
    digits = max((len(str(kind.total)) for kind in types), default=0)
    for kind in types:
        line = Text(f"{text(kind.name or 'GPUs'):{max(wide, 8)}}  ").append_text(_bar(kind, bar))
        line.append(f"  {kind.allocated:{digits}} of {kind.total:{digits}} allocated")
        line.append(f", {kind.free:{digits}} free", style=_GOOD if kind.free else "")
        if kind.out_of_service:
            line.append(f", {kind.out_of_service} out", style=_WARN)
        if not kind.free and kind.next_free_s is not None:
            line.append(f", next in {span(max(0.0, kind.next_free_s - now_s))}")
        yield line


def _bar(kind: GpuType, wide: int) -> Text:
    """Draw GPUs as | (allocated), x (out of service) and . (free); each state that occurs gets a sign."""
    size = min(wide, kind.total)
    parts = {"|": kind.allocated, "x": kind.out_of_service, ".": kind.free}
    signs = {sign: max(1, n * size // kind.total) if n else 0 for sign, n in parts.items()}
    while (more := size - sum(signs.values())) != 0:
        # The largest part absorbs the rounding error.
        largest = max(signs, key=lambda sign: signs[sign])
        signs[largest] += 1 if more > 0 else -1
    styles = {"|": _BUSY, "x": _WARN, ".": _GOOD}
    bar = Text("[")
    for sign in parts:
        bar.append(sign * signs[sign], style=styles[sign])
    return bar.append("]" + " " * (wide - size))


def _node_lines(nodes: Sequence[StateOfNodes]) -> Iterator[Text]:
    well = [one for one in nodes if one.in_service]
    line = Text("Nodes     ")
    line.append(" · ".join(f"{len(one.nodes)} {one.state}" for one in well) or "none accepts jobs")
    yield line
    for one in nodes:
        if not one.in_service:
            line = Text("          ").append(f"{text(compress(one.nodes))} {one.state}", style=_WARN)
            yield line if one.reason is None else line.append(f": {text(one.reason)}")


def _waiting(overview: Overview, now_s: float, few: int | None) -> Iterator[Text]:
    if not overview.waits:
        yield Text("Waiting   no jobs")
        return
    yield Text(f"Waiting   {counted(overview.waiting_jobs, 'job')} for {gpus(overview.waiting_gpus)}")
    digits = max(len(str(wait.n_jobs)) for wait in overview.waits)
    lines = []
    for wait in overview.waits:
        line = Text(f"          {wait.n_jobs:{digits}} {text(wait.reason)}")
        if wait.next_start_s is not None and wait.next_start_s > now_s:
            line.append(f", first in {span(wait.next_start_s - now_s)}")
        if (reason_text := meaning(wait.reason)) is not None:
            line.append(f": {reason_text}")
        lines.append(line)
    yield from _limited(lines, few, "more reasons")


def _alert_line(shown: JobAlert, now_s: float) -> Text:
    since = span(max(0.0, now_s - shown.alert.since_s))
    job_and_user = f"{text(shown.job.user)} {shown.job.id}"
    return Text("! ").append(f"{job_and_user}: {in_words(shown.alert)}, for {since}", style=_WARN)


def _limited(lines: Sequence[Text], few: int | None, more: str) -> Iterator[Text]:
    if few is None or len(lines) <= few:
        yield from lines
        return
    yield from lines[: few - 1]
    yield Text(f"          {len(lines) - few + 1} {more}", style=_FAINT)


def _cells(shown: ShownRow, now_s: float, with_alert: frozenset[int], *, names_node: bool) -> list[Text]:
    row, job = shown.row, shown.row.job
    name = text(compress(row.nodes)) if names_node else ""
    state = Text(row.state if names_node else "", style="" if row.in_service else _WARN)
    kind = Text(text(row.gpu_type) if row.gpu_type else "")
    where = Text(positions(row.gpus) + (" part" if row.shared else ""))
    if job is None:
        if not row.in_service:
            owner = Text("out of service", style=_WARN)
        elif row.n_free == len(row.gpus):
            owner = Text("free", style=_GOOD)
        else:
            owner = Text(f"{row.n_free} free", style=_GOOD if row.n_free else "")
        return [Text(name), state, kind, where, owner, *([Text()] * 6)]
    marked = job.job_id in with_alert
    return [
        Text(name),
        state,
        kind,
        where,
        Text(text(job.user)),
        Text(text(job.account)),
        Text(job.id + ("!" if marked else ""), style=_WARN if marked else ""),
        Text(text(job.name) if job.name else ""),
        _utilisation(shown),
        Text(_mean_percent([device.mem_used_frac for device in shown.devices])),
        Text(_frees(row.frees_s, job.state, now_s)),
    ]


def _utilisation(shown: ShownRow) -> Text:
    """Return the mean utilisation of the measured GPUs, and a bar for each GPU if there are several."""
    values = [device.util_pct for device in shown.devices]
    measured = [value for value in values if value is not None]
    if not measured:
        return Text(GAP)
    mean = math.fsum(measured) / len(measured)
    signs = sparkline([None if value is None else value / 100 for value in values], _SIGNS)
    line = Text(f"{number(mean):>3}", style=_WARN if mean == 0 else "")
    return line.append(f" {signs}", style=_FAINT if mean == 0 else _BUSY) if len(values) > 1 else line


def _mean_percent(fractions: Sequence[float | None]) -> str:
    measured = [fraction for fraction in fractions if fraction is not None]
    return percent(math.fsum(measured) / len(measured) if measured else None, 0)


def _frees(frees_s: int | None, state: str, now_s: float) -> str:
    if state != "RUNNING":
        return state.lower()
    return "no limit" if frees_s is None else span(max(0.0, frees_s - now_s))


def _foot(first: int, shown: int, rows: int, status: str) -> Text:
    place = f"rows {first + 1}–{first + shown} of {rows} · " if shown < rows else ""
    pages = "space: forward · b: back · " if shown < rows else ""
    chosen = f"{status} · " if status else ""
    return Text(f"{chosen}{place}{pages}?: keys · q: quit", style=_FAINT)
