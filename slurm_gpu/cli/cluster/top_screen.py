"""Render an overview as the lines of styled text that `slurm-gpu top` shows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.text import Text

from slurm_gpu.alerts.alert import in_words
from slurm_gpu.cli.cluster.top_order import SORTS, sorted_jobs, sorted_rows
from slurm_gpu.cli.cluster.top_panes import BAD, BUSY, FAINT, GOOD, WARN, job_lines, node_lines
from slurm_gpu.cli.cluster.top_view import KEYS, Pane, View
from slurm_gpu.monitor.cluster.overview import JobAlert, Overview
from slurm_gpu.monitor.cluster.reasons import meaning
from slurm_gpu.monitor.cluster.summary import GpuType, StateOfNodes
from slurm_gpu.text.cells import count, gpus, span, text
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import counted

# An older state is marked, because slurm-gpudbd polls slurmctld more often than this.
_STALE_S = 60.0
# Maximum number of lines of each kind above the table.
_FEW = 5
_MANY_USERS = 8
# Minimum number of rows of a table; lines above the tables are cut if necessary.
_LEAST_ROWS = 5
# With at least this many lines left, nodes and jobs are shown one above the other.
_BOTH_LINES = 24
# With at least this many columns, nodes and jobs may be shown next to each other.
_BOTH_COLUMNS = 130
_SEPARATOR = " │ "
_BAR = 24
_SIGNS = (
    ("[||||x...]", "GPUs that are allocated (|), out of service (x) and free (.)"),
    ("2 part", "only some shards of GPU 2"),
    ("▁▄█", "utilisation of each GPU of the job, after the mean"),
    ("17!", "the job needs attention"),
    ("–", "not measured, unknown, or another user's"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleReason:
    """The reason why the screen is stale, and the wall time of the last answer."""

    why: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The lines, and the part of the current pane that they show."""

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
    view: View | None = None,
    stale: StaleReason | None = None,
) -> Screen:
    """Return the screen; with `height`, return only what fits, and start the tables as `view` states.

    Without `height`, all rows of nodes are returned. Otherwise the last line states the shown rows. If there
    is enough space, both panes are shown, above or next to each other, so that more rows are visible.
    """
    view = View() if view is None else view
    head = list(_head(overview, now_s, zone, stale, _FEW if height is not None else None, width))
    if height is not None:
        head = head[: max(3, height - _LEAST_ROWS - 3)]
    for line in head:
        if width is not None:
            line.truncate(width, overflow="ellipsis")
    with_alert = frozenset(shown.alert.job_id for shown in overview.alerts or ())
    rows = sorted_rows(overview.rows, view.sort, view.is_reverse)
    if height is None or width is None:
        lines = [*head, Text(), *node_lines(rows, now_s, with_alert, width)]
        return Screen(lines=lines, first=0, shown=len(rows), rows=len(rows))
    jobs = sorted_jobs(overview.jobs, view.sort, view.is_reverse)
    totals = {Pane.NODES: len(rows), Pane.JOBS: len(jobs)}
    space = height - len(head) - 2
    sizes, is_side_by_side = _sizes(totals, view.pane, space, width)
    firsts = {pane: max(0, min(view.first.get(pane, 0), totals[pane] - size)) for pane, size in sizes.items()}
    wide = dict.fromkeys(sizes, width)
    if is_side_by_side:
        wide[Pane.NODES] = (width - len(_SEPARATOR)) * 9 // 20
        wide[Pane.JOBS] = width - len(_SEPARATOR) - wide[Pane.NODES]
    parts: dict[Pane, list[Text]] = {}
    for pane, size in sizes.items():
        begin = firsts[pane]
        if pane is Pane.NODES:
            lines = node_lines(rows[begin : begin + size], now_s, with_alert, wide[pane])
        else:
            lines = job_lines(jobs[begin : begin + size], now_s, with_alert, wide[pane])
        if pane is view.pane and len(sizes) > 1:
            lines[0].stylize("reverse")
        parts[pane] = [*lines, *[Text()] * (size + 1 - len(lines))]
    if is_side_by_side:
        body = _side_by_side(parts[Pane.NODES], parts[Pane.JOBS], wide[Pane.NODES])
    else:
        body = [line for part in parts.values() for line in (Text(), *part)][1:]
    shown = min(sizes[view.pane], totals[view.pane] - firsts[view.pane])
    foot = _foot(view, firsts[view.pane], shown, totals[view.pane])
    foot.truncate(width, overflow="ellipsis")
    lines = [*head, Text(), *body]
    lines = [*lines[: height - 1], *[Text()] * (height - 1 - len(lines)), foot]
    return Screen(lines=lines, first=firsts[view.pane], shown=shown, rows=totals[view.pane])


def draw_keys(width: int, height: int) -> list[Text]:
    """Return the list of keys and signs as a screen."""
    lines = [Text("Keys of slurm-gpu top", style="bold"), Text()]
    lines += [Text(f"{key:18}", style="bold").append(what, style="not bold") for key, what in KEYS]
    lines += [Text(), Text("Signs", style="bold"), Text()]
    lines += [Text(f"{sign:18}", style="bold").append(what, style="not bold") for sign, what in _SIGNS]
    wrapped = [part for line in lines for part in line.wrap(Console(width=width), width)]
    shown = wrapped[: height - 1]
    return [*shown, *[Text()] * (height - 1 - len(shown)), Text("any key: back", style=FAINT)]


def _sizes(totals: Mapping[Pane, int], current: Pane, space: int, width: int) -> tuple[dict[Pane, int], bool]:
    """Return the number of rows of each shown pane, and whether the panes are next to each other.

    `space` is the number of lines for the tables with their headings.
    """
    one = {current: max(1, space - 1)}
    if space < _BOTH_LINES:
        return one, False
    stacked = _divided(totals, space - 3)
    if width >= _BOTH_COLUMNS:
        side_by_side = dict.fromkeys(Pane, space - 1)
        if _visible(side_by_side, totals) > _visible(stacked, totals):
            return side_by_side, True
    return stacked, False


def _divided(totals: Mapping[Pane, int], rows: int) -> dict[Pane, int]:
    """Divide rows between the panes: half for each, and unneeded rows for the other pane."""
    nodes = min(totals[Pane.NODES], max(rows // 2, rows - totals[Pane.JOBS]), rows - 1)
    return {Pane.NODES: max(1, nodes), Pane.JOBS: rows - max(1, nodes)}


def _visible(sizes: Mapping[Pane, int], totals: Mapping[Pane, int]) -> int:
    return sum(min(size, totals[pane]) for pane, size in sizes.items())


def _side_by_side(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    lines = []
    for one, other in zip(left, right, strict=True):
        line = one.copy()
        line.pad_right(width - line.cell_len)
        lines.append(line.append(_SEPARATOR, style=FAINT).append_text(other))
    return lines


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
        yield Text(f"! {span(max(0.0, now_s - stale.since_s))} old: {text(stale.why)}", style=BAD)
    else:
        age_s = now_s - overview.as_of_s
        if age_s > _STALE_S:
            line.append(f"  slurmctld last answered {span(age_s)} ago", style=WARN)
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
        line.append(f", {kind.free:{digits}} free", style=GOOD if kind.free else "")
        if kind.out_of_service:
            line.append(f", {kind.out_of_service} out", style=WARN)
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
    styles = {"|": BUSY, "x": WARN, ".": GOOD}
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
            line = Text("          ").append(f"{text(compress(one.nodes))} {one.state}", style=WARN)
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
    return Text("! ").append(f"{job_and_user}: {in_words(shown.alert)}, for {since}", style=WARN)


def _limited(lines: Sequence[Text], few: int | None, more: str) -> Iterator[Text]:
    if few is None or len(lines) <= few:
        yield from lines
        return
    yield from lines[: few - 1]
    yield Text(f"          {len(lines) - few + 1} {more}", style=FAINT)


def _foot(view: View, first: int, shown: int, rows: int) -> Text:
    if view.prompt is not None:
        return Text(f"filter: {view.prompt}▏", style="bold").append("  enter: apply · escape: cancel", FAINT)
    parts = [f"{view.pane} {first + 1}–{first + shown} of {rows}" if rows else f"no {view.pane}"]
    if selected := str(view.shown):
        parts.append(f"filter {text(selected)}")
    if view.sort != SORTS[0] or view.is_reverse:
        parts.append(f"by {view.sort}{', reversed' if view.is_reverse else ''}")
    other = Pane.JOBS if view.pane is Pane.NODES else Pane.NODES
    keys = ["?: keys", "q: quit", f"tab: {other}", "/: filter", "s: sort"]
    keys += ["space: forward"] if shown < rows else []
    return Text(" · ".join((*parts, *keys)), style=FAINT)
