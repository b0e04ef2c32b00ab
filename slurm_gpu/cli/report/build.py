"""`slurm-gpu report build`: write a report for a period, on slurm-gpudbd's host."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.local_database import database_url
from slurm_gpu.cli.options import database_option
from slurm_gpu.cli.output import remark
from slurm_gpu.cli.policy.file import PATH, policy_path
from slurm_gpu.cli.progress import progress_bar
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import InputError, UsageError
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.text.units import counted, parse_duration

if TYPE_CHECKING:  # numpy is installed only on slurm-gpudbd's host
    from slurm_gpu.policy.language.model import Bundle
    from slurm_gpu.reports.build import ReportProgress
    from slurm_gpu.reports.period import ReportPeriod

_DEFAULT_SINCE = "30d"


@click.command(short_help="Write a report for a period of whole days.")
@click.option(
    "--since",
    metavar="DAY",
    help=f"First day, such as 2026-10-01, or 30d for 30 days ago. [default: {_DEFAULT_SINCE}]",
)
@click.option("--until", metavar="DAY", help="Day after the last day. [default: tomorrow]")
@click.option(
    "--last",
    type=click.Choice(["day", "week", "month"]),
    help="Report on the last whole day, week (from Monday) or month, in its own directory in DIR.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for report.html, tables/ and figures/; created if missing.",
)
@click.option(
    "--low-priority",
    multiple=True,
    metavar="QOS",
    help="QOS of preemptible jobs; repeatable. Jobs on loan always count as preemptible.",
)
@click.option(
    "--policy",
    type=PATH,
    envvar="SLURM_GPU_POLICY",
    metavar="FILE",
    help="Policy with bundles and owners. [default: policy.yaml next to the site file]",
)
@click.option("--page-only", is_flag=True, help="Write only report.html.")
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
    """Write a report for a period of whole days: one HTML page, and its tables and figures as files.

    Run this command on slurm-gpudbd's host, as root or SlurmUser. The page loads nothing from other hosts,
    so you can mail and archive it. It names users and jobs, so only its owner can read it.
    """
    # numpy and the database modules are not installed on login nodes.
    from slurm_gpu.reports.build import build_report, open_database

    config, now_s = site.config, site.wall()
    today = dt.datetime.fromtimestamp(now_s, ZoneInfo(config.timezone)).date()
    if last is not None:
        if since is not None or until is not None:
            raise UsageError("--last cannot be combined with --since or --until")
        period, name = _last(last, today, config.timezone)
        out = out / name
    else:
        period = _between(_DEFAULT_SINCE if since is None else since, until, today, config.timezone)
    database = open_database(database_url(database_config))
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
    more = "" if page_only else f", with {counted(built.files - 1, 'file')} of tables and figures"
    remark(f"{counted(built.figures, 'figure')} of {counted(built.runs, 'run')}{more}")


def _of_policy(site: CommandSite, file: Path | None) -> tuple[Sequence[Bundle], set[str]]:
    """Return the bundles of the policy and the QOS of its loans; both are empty without a policy."""
    path = policy_path(site, file)
    if file is None and not path.exists():
        return (), set()
    try:
        policy, _ = load_policy(path)
    except InputError as error:
        if file is not None:
            raise
        # A nightly report must not fail because the policy is being edited.
        remark(f"{path} is ignored: {error}")
        return (), set()
    return tuple(policy.bundles.values()), {owner.lend_in for owner in policy.owners}


def _between(since: str, until: str | None, today: dt.date, timezone: str) -> ReportPeriod:
    from slurm_gpu.reports.period import ReportPeriod

    first = _day("--since", since, today)
    if until is None and first > today:
        raise UsageError(f"--since {since} is in the future: today is {today}")
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
    raise UsageError(f"{option} {value}: use a date (2026-10-01) or whole days ago (30d, 4w)")


def _last(span: str, today: dt.date, timezone: str) -> tuple[ReportPeriod, str]:
    """Return the last whole day, week or month before today, and a directory name that sorts by time."""
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
