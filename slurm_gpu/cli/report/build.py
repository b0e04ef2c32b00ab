"""`slurm-gpu report build`: a period as a page with its tables and figures, on slurm-gpudbd's host."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import database_option
from slurm_gpu.cli.output import remark
from slurm_gpu.cli.policy.file import PATH, policy_path
from slurm_gpu.cli.progress import progress_bar
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import InputError, UsageError
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.text.units import counted, parse_duration

if TYPE_CHECKING:  # numpy is on slurm-gpudbd's host only
    from slurm_gpu.policy.language.model import Bundle
    from slurm_gpu.reports.build import ReportProgress
    from slurm_gpu.reports.period import ReportPeriod

_DEFAULT_SINCE = "30d"


@click.command(short_help="Write a page on whole days, with its tables and figures.")
@click.option(
    "--since",
    metavar="DAY",
    help=f"The first day: 2026-10-01, or 30d for 30 days ago. [default: {_DEFAULT_SINCE}]",
)
@click.option("--until", metavar="DAY", help="The day after the last one. [default: tomorrow]")
@click.option(
    "--last",
    type=click.Choice(["day", "week", "month"]),
    help="The last whole day, week from Monday on, or month, into a directory of its own in DIR.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where report.html goes, and tables/ and figures/; made where there is none.",
)
@click.option(
    "--low-priority",
    multiple=True,
    metavar="QOS",
    help="A QOS whose jobs give way to others; may be repeated. Jobs on loan count as such anyway.",
)
@click.option(
    "--policy",
    type=PATH,
    envvar="SLURM_GPU_POLICY",
    metavar="FILE",
    help="The policy with the bundles and owners' loans, if not policy.yaml beside the site file.",
)
@click.option("--page-only", is_flag=True, help="Write report.html alone.")
@database_option
@with_site
def build(
    site: CommandSite,
    since: str | None,
    until: str | None,
    last: str | None,
    out: Path,
    low_priority: tuple[str, ...],
    policy: Path | None,
    page_only: bool,
    database_config: Path | None,
) -> None:
    """Write a report on whole days: one HTML page, and all its tables and figures as files.

    The page asks no other host for anything, so it can be mailed and archived. It names users and jobs: only
    its owner may read it until somebody says otherwise.
    """
    # Only this command needs numpy and what reads the database, which a login node does not have.
    from slurm_gpu.database.settings import DEFAULT_PATH, default_is_meant, load_settings
    from slurm_gpu.reports.build import build_report, open_database

    config, now_s = site.config, site.wall()
    today = dt.datetime.fromtimestamp(now_s, ZoneInfo(config.timezone)).date()
    if last is not None:
        if since is not None or until is not None:
            raise UsageError("--last says which days: leave out --since and --until, or --last")
        period, name = _last(last, today, config.timezone)
        out = out / name
    else:
        period = _between(_DEFAULT_SINCE if since is None else since, until, today, config.timezone)
    if database_config is None and not default_is_meant():
        raise UsageError(
            f"there is no {DEFAULT_PATH}, so the database is not known here: run this on slurm-gpudbd's "
            "host, or name the file with --database-config"
        )
    database = open_database(load_settings(database_config).url)
    bundles, loans = _of_policy(site, policy)
    with _progress() as progress:
        built = build_report(
            database,
            config,
            period,
            out,
            now_s,
            progress=progress,
            low_priority={*low_priority, *loans},
            bundles=bundles,
            with_files=not page_only,
        )
    click.echo(str(built.page))
    more = "" if page_only else f", with {built.files - 1} files of tables and pictures beside it"
    remark(f"{counted(built.figures, 'figure')} of {counted(built.runs, 'run')}{more}")


def _of_policy(site: CommandSite, file: Path | None) -> tuple[Sequence[Bundle], set[str]]:
    """The bundles of the policy, and the QOS of its loans; nothing where a site has none."""
    path = policy_path(site, file)
    if file is None and not path.exists():
        return (), set()
    try:
        policy, _ = load_policy(path)
    except InputError as error:
        if file is not None:
            raise
        # A report that comes each night is not to fail for a policy that somebody is about to write.
        remark(f"{path} is left aside, as it is not right: {error}")
        return (), set()
    return tuple(policy.bundles.values()), {owner.lend_in for owner in policy.owners}


def _between(since: str, until: str | None, today: dt.date, timezone: str) -> ReportPeriod:
    from slurm_gpu.reports.period import ReportPeriod

    first = _day("--since", since, today)
    if until is None and first > today:
        raise UsageError(f"--since {since} is yet to come: today is {today}; name an earlier day")
    return ReportPeriod(
        since=first,
        until=today + dt.timedelta(days=1) if until is None else _day("--until", until, today),
        timezone=timezone,
    )


def _day(option: str, value: str, today: dt.date) -> dt.date:
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        pass
    try:
        seconds = parse_duration(value)
        if seconds % 86400 == 0:
            return today - dt.timedelta(days=int(seconds // 86400))
    except (ValueError, OverflowError):
        pass
    raise UsageError(
        f"{option} {value}: a report is of whole days; write one (2026-10-01), or how many ago (30d, 4w)"
    )


def _last(span: str, today: dt.date, timezone: str) -> tuple[ReportPeriod, str]:
    """The last whole one before today, and a name of it that sorts by time."""
    from slurm_gpu.reports.period import ReportPeriod

    if span == "day":
        since, until = today - dt.timedelta(days=1), today
        name = since.isoformat()
    elif span == "week":
        until = today - dt.timedelta(days=today.weekday())
        since = until - dt.timedelta(days=7)
        name = f"{since:%G-W%V}"
    else:
        until = today.replace(day=1)
        since = (until - dt.timedelta(days=1)).replace(day=1)
        name = f"{since:%Y-%m}"
    return ReportPeriod(since=since, until=until, timezone=timezone), name


@contextmanager
def _progress() -> Iterator[ReportProgress]:
    with progress_bar() as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, now: str) -> None:
            bar.update(task, completed=done, total=total, description=now, refresh=True)

        yield progress
