"""`slurm-gpu db`: upgrade, export and prune slurm-gpudbd's database, on its host."""

from __future__ import annotations

import os
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.local_database import database_url, open_current
from slurm_gpu.cli.options import database_option
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.times import parse_period
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.text.units import counted, format_duration


@click.group()
def db() -> None:
    """Upgrade, export and prune slurm-gpudbd's database.

    Run these commands on slurm-gpudbd's host, as root or SlurmUser.
    """


@db.command(short_help="Back up the database and upgrade its schema.")
@database_option
@click.option(
    "--backup-to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Backup directory. [default: next to the SQLite file; /var/lib/slurm-gpu/backup for MariaDB]",
)
@click.option("--no-backup", is_flag=True, help="Make no backup.")
def upgrade(database_config: Path | None, backup_to: Path | None, *, no_backup: bool) -> None:
    """Back up the database, then upgrade its tables to the schema of this version.

    Nothing is done if the tables are current. If the command is interrupted, run it again to continue. Run
    it on slurm-gpudbd's host, as root or SlurmUser.
    """
    # SQLAlchemy is not installed on login nodes.
    from slurm_gpu.database.storage.engine import shown_url
    from slurm_gpu.database.storage.upgrade import upgrade_database

    if no_backup and backup_to is not None:
        raise UsageError("--no-backup and --backup-to are mutually exclusive")
    url = database_url(database_config)
    os.umask(0o077)  # as in slurm-gpudbd: new files are readable only by their owner
    done = upgrade_database(url, backup=not no_backup, backup_to=backup_to, report=click.echo)
    was = "" if done.before in (None, done.after) else f", had {done.before}"
    click.echo(f"{shown_url(url)} has schema {done.after}{was}")


@db.command(short_help="Write runs, records and events as Parquet files by month.")
@database_option
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Output directory; created if missing.",
)
@click.option(
    "--since", metavar="TIME", help="A date in the first month, such as 2026-10-01, or 60d for 60 days ago."
)
@click.option("--until", metavar="TIME", help="The last month is the month of the day before TIME.")
@click.option(
    "--timelines", is_flag=True, help="Include the timeline of each record; files become much larger."
)
@with_site
def export(
    site: CommandSite,
    database_config: Path | None,
    out: Path,
    since: str | None,
    until: str | None,
    *,
    timelines: bool,
) -> None:
    """Write runs, records and events as Parquet files by UTC month, for DuckDB, Spark or pyarrow.

    If the command is interrupted, run it again with the same options to continue. Files of other months in
    DIR are kept. Run the command on slurm-gpudbd's host, as root or SlurmUser.
    """
    try:
        from slurm_gpu.reports.export import export as export_months
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed: install slurm-gpu-report, or slurm-gpu[db,report] with pip"
        ) from None
    since_s, until_s = parse_period(since, until, ZoneInfo(site.config.timezone), site.wall())
    database = open_current(database_url(database_config))
    try:
        done = export_months(
            database, out, since_s=since_s, until_s=until_s, timelines=timelines, report=click.echo
        )
    except OSError as error:
        raise OutsideError(f"{out} cannot be written: {error.strerror or error}") from error
    counts = ", ".join(f"{name} {n}" for name, n in sorted(done.rows.items()))
    click.echo(f"{out} has {counted(done.months, 'month')}; rows: {counts or 'none'}")


@db.command(short_help="Delete data older than `retention:` allows.")
@database_option
@click.option("--dry-run", is_flag=True, help="Count what would be deleted, and delete nothing.")
@with_site
def prune(site: CommandSite, database_config: Path | None, *, dry_run: bool) -> None:
    """Delete timelines, windows, events, verdicts, forecasts and decisions older than `retention:` allows.

    Verdicts follow the setting for events. Runs and their totals are kept. slurm-gpudbd also prunes its
    database every hour. Run this command on slurm-gpudbd's host, as root or SlurmUser.
    """
    from slurm_gpu.database.maintenance.pruning import Pruning

    pruning = Pruning(open_current(database_url(database_config)), site.config.retention)
    now_s = int(site.wall())
    found = pruning.count(now_s) if dry_run else pruning.prune(now_s)
    counts = [
        f"{counted(n, word)} older than {format_duration(kept_s)}"
        for n, word, kept_s in (
            (found.timelines, "timeline", site.config.retention.timelines_s),
            (found.windows, "window", site.config.retention.windows_s),
            (found.events, "event", site.config.retention.events_s),
            (found.verdicts, "verdict", site.config.retention.events_s),
            (found.forecasts, "forecast", site.config.retention.forecasts_s),
            (found.decisions, "decision", site.config.retention.decisions_s),
        )
    ]
    click.echo(f"{'would delete' if dry_run else 'deleted'} {', '.join(counts)}")
