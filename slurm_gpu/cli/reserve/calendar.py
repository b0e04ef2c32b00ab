"""Print reservations: a table, a calendar by day, and the delays of past reservations."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from slurm_gpu.cli.output import console, print_table
from slurm_gpu.placement.promises import PromiseDelays, lateness_s
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.text.cells import GAP, span, text
from slurm_gpu.text.units import counted, format_duration
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState

_COLUMNS = ("ID", "state", "user", "account", "GPUs", "nodes", "begins", "for", "note")
_PAST_COLUMNS = ("ID", "state", "user", "GPUs", "nodes", "promised", "late", "note")
_PER_DAY = (24, 12, 8, 6, 4, 3, 2, 1)
_MOST_DAYS = 60
_WIDEST = 100
_LABEL = 20
_DAY = "%a %d"
_FREE, _TAKEN, _OTHERS = "·", "█", "▒"
_STYLES = {_FREE: "dim", _TAKEN: "green", _OTHERS: "yellow"}


@dataclass(frozen=True, slots=True)
class Calendar:
    """Reservations to show."""

    rows: Sequence[Reservation]
    others: Sequence[SlurmReservation]
    now_s: float
    zone: ZoneInfo


def day_and_time(at_s: int | None, zone: ZoneInfo) -> str:
    """Format a time, such as "Tue 2026-11-24 14:00"."""
    return GAP if at_s is None else f"{dt.datetime.fromtimestamp(at_s, zone):%a %Y-%m-%d %H:%M}"


def late(one: Reservation) -> int | None:
    """Return how late the first job of a reservation began; None if no job ran.

    The delay is measured from the promised start, or from the time when the job became eligible if later.
    """
    if one.start_s is None:
        return None
    return lateness_s(one.start_s, one.first_start_s, one.first_eligible_s)


def print_calendar(shown: Calendar) -> None:
    """Print a table of reservations and requests, and a timeline of the coming days for each."""
    if not shown.rows and not shown.others:
        click.echo("There are no reservations and no requests")
        return
    ordered = sorted(
        shown.rows, key=lambda row: (row.start_s is None, row.start_s or row.requested_s, row.id)
    )
    if ordered:
        table = [_row(row, shown.zone) for row in ordered]
        print_table(
            _COLUMNS,
            table,
            right=("ID", "GPUs"),
            whole=("begins", "state"),
            cut=("user", "account"),
            spare=("account", "state"),
        )
    lines = [
        *(
            (f"{row.id} {row.user}", row.start_s, row.end_s, _TAKEN)
            for row in ordered
            if row.start_s is not None
        ),
        *((text(one.name), one.start_s, one.end_s, _OTHERS) for one in shown.others),
    ]
    if lines:
        click.echo()
        for line in _timeline(lines, shown.now_s, shown.zone, min(console().width, _WIDEST)):
            console().print(line, soft_wrap=True)


def print_past(rows: Sequence[Reservation], promises: PromiseDelays, zone: ZoneInfo) -> None:
    """Print past reservations, the latest first, and a summary of their delays."""
    if not rows:
        click.echo("No reservation has ended yet")
        return
    ordered = sorted(rows, key=lambda row: (-(row.ended_s or 0), row.id))
    print_table(
        _PAST_COLUMNS,
        [_past_row(row, zone) for row in ordered],
        right=("ID", "GPUs", "late"),
        whole=("promised",),
        cut=("user",),
        spare=("nodes",),
    )
    if promises.n:
        click.echo(
            f"Promised and used: {promises.n}; the first job began {span(promises.median_s)} late (median), "
            f"and at most {span(promises.worst_s)} late"
        )
    if promises.unused:
        click.echo(f"Promised and not used: {promises.unused}")
    if promises.not_made:
        click.echo(f"Promised but never in Slurm: {promises.not_made}")


def _row(one: Reservation, zone: ZoneInfo) -> tuple[str, ...]:
    nodes = one.nodes if one.nodes is not None else counted(one.n_nodes, "node")
    return (
        str(one.id),
        one.state,
        one.user,
        one.account,
        _gpus(one),
        nodes,
        _begins(one, zone),
        format_duration(one.duration_s),
        _note(one, zone),
    )


def _past_row(one: Reservation, zone: ZoneInfo) -> tuple[str, ...]:
    return (
        str(one.id),
        one.state,
        one.user,
        _gpus(one),
        text(one.nodes),
        day_and_time(one.start_s, zone),
        span(late(one)),
        text(one.ended_why),
    )


def _gpus(one: Reservation) -> str:
    return str(one.gpus) if one.gpu_type is None else f"{one.gpus} {one.gpu_type}"


def _begins(one: Reservation, zone: ZoneInfo) -> str:
    return GAP if one.start_s is None else f"{dt.datetime.fromtimestamp(one.start_s, zone):%a %d %b %H:%M}"


def _note(one: Reservation, zone: ZoneInfo) -> str:
    if one.error is not None:
        return text(one.error)
    if one.state is ReservationState.REQUESTED:
        return text(one.why) if one.full else "awaits an operator's decision"
    if one.first_job_id is not None:
        late_s = late(one)
        return f"job {one.first_job_id}" + (f", {span(late_s)} late" if late_s else "")
    if one.state is ReservationState.ACTIVE:
        return "no job yet"
    return text(one.why) if one.full else GAP


def _timeline(
    lines: Sequence[tuple[str, int | None, int | None, str]], now_s: float, zone: ZoneInfo, width: int
) -> Iterator[Text]:
    """Yield a heading of days and a line for each reservation; each sign represents a part of a day."""
    label = min(_LABEL, max(len(name) for name, *_ in lines))
    today = dt.datetime.fromtimestamp(now_s, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    last = dt.datetime.fromtimestamp(max(end_s or 0 for _, _, end_s, _ in lines), zone)
    columns = width - label - 1
    days = max(1, min((last.date() - today.date()).days + 1, _MOST_DAYS, columns))
    per_day = next(signs for signs in _PER_DAY if signs * days <= columns)
    starts = [(today + dt.timedelta(days=day)).timestamp() for day in range(days + 1)]
    edges = [
        begin + (end - begin) * sign / per_day
        for begin, end in itertools.pairwise(starts)
        for sign in range(per_day)
    ] + [starts[-1]]
    every = -(-(len(f"{today:{_DAY}}") + 1) // per_day)
    names = "".join(
        f"{today + dt.timedelta(days=day):{_DAY}}".ljust(per_day * every) for day in range(0, days, every)
    )
    yield Text(f"{'':{label}} {names}"[:width].rstrip(), "bold")
    for name, start_s, end_s, sign in lines:
        shown = name if len(name) <= label else f"{name[: label - 1]}…"
        line = Text(f"{shown:{label}} ")
        signs = (
            sign if (start_s or 0) < end and begin < (end_s or 0) else _FREE
            for begin, end in itertools.pairwise(edges)
        )
        for which, run in itertools.groupby(signs):
            line.append("".join(run), _STYLES[which])
        yield line
    hours = 24 // per_day
    others = (
        f"; {_OTHERS} is a reservation made directly in Slurm" if any(s == _OTHERS for *_, s in lines) else ""
    )
    part = "a day" if hours == 24 else counted(hours, "hour")
    yield Text(f"{'':{label}} each sign is {part}{others}", "dim")
