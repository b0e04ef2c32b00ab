"""`slurm-gpu top`: show the cluster on one screen, updated every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from zoneinfo import ZoneInfo

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from slurm_gpu.cli.cluster.keys import keys
from slurm_gpu.cli.cluster.top_screen import Screen, StaleReason, draw
from slurm_gpu.cli.cluster.top_view import HELP, TopView
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
@click.option("-u", "--user", metavar="NAME", help="Only GPUs and pending jobs of this user.")
@click.option("--me", is_flag=True, help="Only your GPUs and pending jobs.")
@click.option(
    "-p", "--partition", metavar="NAME", help="Only nodes in this partition, and jobs pending for it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON once (keys: docs/commands.md).")
@with_site
def top(
    site: CommandSite,
    once: bool,
    interval: str,
    user: str | None,
    me: bool,
    partition: str | None,
    as_json: bool,
) -> None:
    """Watch GPUs, their jobs and time limits, pending jobs with their reasons, and nodes out of service.

    GPUs are numbered as in Slurm; "part" means some shards of a GPU. Nodes with the same values share a row.
    The bars after the mean utilisation represent the GPUs of the job, one bar per GPU if there are few. Only
    operators see the GPU use of other users. "!" marks jobs that need attention. The mark appears immediately
    after a GPU error or if no GPU was ever used, and otherwise after four minutes of watching.

    Keys: ? lists them, s sorts, / filters, m shows only your jobs, space pages forward, and q quits.
    """
    try:
        interval_s = parse_duration(interval)
    except ValueError:
        interval_s = 0.0
    if not _LEAST_S <= interval_s <= _MOST_S:
        raise UsageError(f"--interval {interval}: use a duration from 1s to 1h, such as 5s")
    if me and user is not None:
        raise UsageError("--me and --user are mutually exclusive")
    view = TopView(uid_and_name(None)[1], only_own=me)
    observer = Observer(site.database, site.wall, time.monotonic)
    observer.poll()
    watched = _LiveScreen(site, observer, user, partition, view)
    watched.check()
    if as_json:
        print_json(watched.overview(fold=False).to_json())
    elif once or not sys.stdout.isatty() or console().is_dumb_terminal:
        screen = console()
        width = screen.width if sys.stdout.isatty() else None
        _print(screen, draw(watched.overview(), site.wall(), watched.zone, width=width))
    else:
        _follow(watched, interval_s)


class _LiveScreen:
    """The state to show, and the filters of the command."""

    def __init__(
        self,
        site: CommandSite,
        observer: Observer,
        user: str | None,
        partition: str | None,
        view: TopView,
    ) -> None:
        self.view = view
        self.site, self.observer, self.zone = site, observer, ZoneInfo(site.config.timezone)
        self._user, self._partition = user, partition

    def check(self) -> None:
        """Raise UsageError for a partition without nodes."""
        assert self.observer.last is not None
        known = sorted({name for node in self.observer.last.seen.cluster.nodes for name in node.partitions})
        if self._partition is not None and self._partition not in known:
            raise UsageError(
                f"--partition {self._partition}: no node is in this partition; the partitions are "
                f"{', '.join(known)}"
            )

    def overview(self, fold: bool = True) -> Overview:
        """Return the overview of the last poll, with the filters applied."""
        last = self.observer.last
        assert last is not None
        found = make_overview(
            self.site.config.cluster,
            last.seen.cluster,
            last.seen.live,
            last.seen.reports,
            alerts=last.alerts,
            user=self.view.own_user if self.view.only_own else self._user,
            partition=self._partition,
            fold=fold,
        )
        return self.view.arranged(found)

    def draw(self, overview: Overview, screen: Console, first: int) -> Screen:
        """Return the current screen."""
        error, seen = self.observer.error, self.observer.last
        assert seen is not None
        return draw(
            overview,
            self.site.wall(),
            self.zone,
            width=screen.width,
            height=screen.height,
            first=first,
            status=self.view.status,
            help_lines=HELP if self.view.shows_help else (),
            stale=None if error is None else StaleReason(why=error, since_s=seen.at_s),
        )


def _follow(watched: _LiveScreen, interval_s: float) -> None:
    """Show the screen until the user presses q."""
    screen, first = console(), 0
    poll: threading.Thread | None = None
    due = time.monotonic() + interval_s
    overview, seen = watched.overview(), watched.observer.last
    with keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as shown:
        while True:
            drawn = watched.draw(overview, screen, first)
            first = drawn.first
            shown.update(_joined(drawn), refresh=True)
            key = pressed(_DRAWN_EVERY_S)
            if key in ("q", "Q", "\x04") and not watched.view.is_typing:
                return
            if watched.view.press(key):
                overview = watched.overview()
            else:
                first = max(0, first + _moved(key, drawn))
            if poll is not None and not poll.is_alive():
                poll = None
            if poll is None and time.monotonic() >= due:
                # Poll in a thread, because keys must work while slurm-gpudbd answers.
                poll = threading.Thread(target=watched.observer.poll, daemon=True)
                poll.start()
                due = time.monotonic() + interval_s
            if watched.observer.last is not seen:
                overview, seen = watched.overview(), watched.observer.last


def _moved(key: str, drawn: Screen) -> int:
    page = max(1, drawn.shown - 1)
    return {
        " ": page,
        "page down": page,
        "b": -page,
        "page up": -page,
        "j": 1,
        "down": 1,
        "k": -1,
        "up": -1,
        "home": -drawn.rows,
        "g": -drawn.rows,
        "end": drawn.rows,
        "G": drawn.rows,
    }.get(key, 0)


def _joined(drawn: Screen) -> Text:
    return Text("\n", no_wrap=True).join(drawn.lines)


def _print(screen: Console, drawn: Screen) -> None:
    with screen.capture() as captured:
        for line in drawn.lines:
            screen.print(line, end="\n", soft_wrap=True)
    click.echo("\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n"), color=True)
