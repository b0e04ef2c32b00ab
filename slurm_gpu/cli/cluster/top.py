"""`slurm-gpu top`: show the cluster on one screen, updated every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from slurm_gpu.cli.cluster.keys import END, keys
from slurm_gpu.cli.cluster.top_order import SORTS
from slurm_gpu.cli.cluster.top_screen import Screen, StaleReason, draw, draw_keys
from slurm_gpu.cli.cluster.top_view import Filter, View
from slurm_gpu.cli.output import console, print_json
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.observer import Observer
from slurm_gpu.monitor.cluster.overview import Overview, make_overview
from slurm_gpu.text.units import parse_duration

_DRAWN_EVERY_S = 1.0
"""Ages and remaining times are redrawn between polls."""
_LEAST_S, _MOST_S = 1.0, 3600.0


@click.command()
@click.option("--once", is_flag=True, help="Print all rows once, as when the output is piped.")
@click.option(
    "--interval",
    default="5s",
    metavar="DURATION",
    show_default=True,
    help="Time between updates, from 1s to 1h.",
)
@click.option("-u", "--user", metavar="NAME", help="Only GPUs and jobs of this user.")
@click.option("--me", is_flag=True, help="Only your GPUs and jobs.")
@click.option("-A", "--account", metavar="NAME", help="Only GPUs and jobs of this account.")
@click.option(
    "-p", "--partition", metavar="NAME", help="Only nodes in this partition, and jobs pending for it."
)
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Order of rows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON once (keys: docs/commands.md).")
@with_site
def top(
    site: CommandSite,
    once: bool,
    interval: str,
    user: str | None,
    me: bool,
    account: str | None,
    partition: str | None,
    sort: str,
    as_json: bool,
) -> None:
    """Watch GPUs, their jobs and time limits, pending jobs with their reasons, and nodes out of service.

    GPUs are numbered as in Slurm; "part" means some shards of a GPU. Nodes with the same values share a row.
    In bars, "|" means allocated, "x" out of service and "." free. The bars after the mean utilisation
    represent the GPUs of the job, one bar per GPU if there are few. Only operators see the GPU use of other
    users. "!" marks jobs that need attention. The mark appears immediately after a GPU error or if no GPU was
    ever used, and otherwise after four minutes of watching.

    Keys: ? lists all keys, tab switches between nodes and jobs, / filters, s sorts, m shows only your jobs,
    space pages forward, b pages back, and q quits.
    """
    try:
        interval_s = parse_duration(interval)
    except ValueError:
        interval_s = 0.0
    if not _LEAST_S <= interval_s <= _MOST_S:
        raise UsageError(f"--interval {interval}: use a duration from 1s to 1h, such as 5s")
    if me and user is not None:
        raise UsageError("--me and --user are mutually exclusive")
    caller = uid_and_name(None, "--me")[1] if me else _caller()
    selected = Filter(user=caller if me else user, account=account, partition=partition)
    view = View(me=caller, sort=sort, shown=selected)
    observer = Observer(site.database, site.wall, time.monotonic)
    observer.poll()
    watched = _LiveScreen(site, observer)
    watched.check(partition)
    if as_json:
        print_json(watched.overview(selected, fold=False).to_json())
    elif once or not sys.stdout.isatty() or console().is_dumb_terminal:
        screen = console()
        width = screen.width if sys.stdout.isatty() else None
        _print(screen, draw(watched.overview(selected), site.wall(), watched.zone, width=width, view=view))
    else:
        _follow(watched, view, interval_s)


class _LiveScreen:
    """The state to show."""

    def __init__(self, site: CommandSite, observer: Observer) -> None:
        self.site, self.observer, self.zone = site, observer, ZoneInfo(site.config.timezone)

    def check(self, partition: str | None) -> None:
        """Raise UsageError for a partition without nodes."""
        assert self.observer.last is not None
        known = sorted({name for node in self.observer.last.seen.cluster.nodes for name in node.partitions})
        if partition is not None and partition not in known:
            raise UsageError(
                f"--partition {partition}: no node is in this partition; the partitions are "
                f"{', '.join(known)}"
            )

    def overview(self, selected: Filter, fold: bool = True) -> Overview:
        """Return the overview of the last poll, with the filter applied."""
        last = self.observer.last
        assert last is not None
        return make_overview(
            self.site.config.cluster,
            last.seen.cluster,
            last.seen.live,
            last.seen.reports,
            alerts=last.alerts,
            user=selected.user,
            account=selected.account,
            partition=selected.partition,
            words=selected.words,
            fold=fold,
        )

    def draw(self, overview: Overview, screen: Console, view: View) -> Screen:
        """Return the current screen."""
        error, seen = self.observer.error, self.observer.last
        assert seen is not None
        return draw(
            overview,
            self.site.wall(),
            self.zone,
            width=screen.width,
            height=screen.height,
            view=view,
            stale=None if error is None else StaleReason(why=error, since_s=seen.at_s),
        )


def _caller() -> str | None:
    try:
        return uid_and_name(None)[1]
    except UsageError:
        return None


def _follow(watched: _LiveScreen, view: View, interval_s: float) -> None:
    """Show the screen until the user presses q."""
    screen = console()
    poll: threading.Thread | None = None
    due = time.monotonic() + interval_s
    overview, seen, selected = watched.overview(view.shown), watched.observer.last, view.shown
    with keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as shown:
        while True:
            drawn = watched.draw(overview, screen, view)
            # The last page may begin earlier than requested.
            view = replace(view, first={**view.first, view.pane: drawn.first})
            lines = draw_keys(screen.width, screen.height) if view.shows_keys else drawn.lines
            shown.update(_joined(lines), refresh=True)
            key = pressed(_DRAWN_EVERY_S)
            if key == END or (key in ("q", "Q") and view.prompt is None):
                return
            if key:
                view = view.pressed(key, drawn.shown, drawn.rows)
            if poll is not None and not poll.is_alive():
                poll = None
            if poll is None and time.monotonic() >= due:
                # Poll in a thread, because keys must work while slurm-gpudbd answers.
                poll = threading.Thread(target=watched.observer.poll, daemon=True)
                poll.start()
                due = time.monotonic() + interval_s
            if watched.observer.last is not seen or view.shown != selected:
                overview, seen, selected = watched.overview(view.shown), watched.observer.last, view.shown


def _joined(lines: Sequence[Text]) -> Text:
    return Text("\n", no_wrap=True).join(lines)


def _print(screen: Console, drawn: Screen) -> None:
    with screen.capture() as captured:
        for line in drawn.lines:
            screen.print(line, end="\n", soft_wrap=True)
    click.echo("\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n"), color=True)
