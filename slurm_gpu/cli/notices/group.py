"""`slurm-gpu notices`: show notices to users, and jobs that were ended for idle GPUs."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.notices.dry_run import dry_run as show_dry_run
from slurm_gpu.cli.notices.table import about, print_lines
from slurm_gpu.cli.notices.undo import undo
from slurm_gpu.cli.options import run_directory_option
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.controller.notices import status
from slurm_gpu.controller.notices.reconciler import ledger_path
from slurm_gpu.controller.notices.status import Status
from slurm_gpu.errors import UsageError
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.ledger import Ledger
from slurm_gpu.notices.settings import FILE_NAME, Settings, load_settings
from slurm_gpu.notices.wording import of_end, of_notice
from slurm_gpu.text.cells import moment, text

_MOST = 1000


@click.group(invoke_without_command=True)
@click.option("--dry-run", is_flag=True, help="Show the notices that are due, without sending them.")
@click.option("--text", "whole", is_flag=True, help="With --dry-run: print the messages in full.")
@click.option(
    "--settings",
    "settings_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --dry-run: settings file. [default: notices.yaml next to the site file]",
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=20,
    show_default=True,
    metavar="N",
    help="Print the latest N notices.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (keys: docs/commands.md).")
@run_directory_option("Directory that slurm-gpuctld writes to.")
@with_site
@click.pass_context
def notices(
    ctx: click.Context,
    site: CommandSite,
    dry_run: bool,
    whole: bool,
    settings_path: Path | None,
    limit: int,
    as_json: bool,
    run_dir: Path,
) -> None:
    """Show current alerts, the latest notices to users, and jobs ended for idle GPUs.

    Run this command on slurm-gpuctld's host, as root or SlurmUser. With --dry-run, the notices that are due
    are computed from slurm-gpudbd's data, nothing is sent or recorded, and no job is ended. Operators may use
    --dry-run on any host.
    """
    if ctx.invoked_subcommand is not None:
        return
    if not dry_run and (whole or settings_path is not None):
        raise UsageError("--text and --settings require --dry-run")
    path = site.config_path.parent / FILE_NAME if settings_path is None else settings_path
    settings = load_settings(path)
    if settings is None:
        if dry_run:
            raise UsageError(f"{path} does not exist; specify another file with --settings FILE")
        if as_json:
            print_json(
                {"mode": None, "as_of_s": None, "cancels": None, "now": [], "notices": [], "ended": []}
            )
        remark(f"{path} does not exist: no user is notified, and no job is ended")
        return
    if dry_run:
        show_dry_run(site, settings, as_json=as_json, whole=whole)
        return
    ledger, current = _read(site, run_dir)
    if as_json:
        plain = ledger.to_json()
        print_json(
            {
                "mode": settings.mode,
                "as_of_s": None if current is None else current.as_of_s,
                "cancels": None if current is None else current.cancels,
                "now": [] if current is None else [asdict(line) for line in current.outlook],
                "notices": plain["notices"][-limit:],
                "ended": plain["ended"][-limit:],
            }
        )
        return
    zone = ZoneInfo(site.config.timezone)
    _print_now(current, settings, site.wall(), zone)
    _print_sent(ledger, limit, zone)
    _print_ended(ledger, limit, zone)


notices.add_command(undo)


def _read(site: CommandSite, run_dir: Path) -> tuple[Ledger, Status | None]:
    settings = site.slurm.settings()
    path = ledger_path(settings)
    if os.geteuid() not in (0, settings.slurm_user_uid):
        raise UsageError(
            f"only root and {settings.slurm_user} (SlurmUser) may read sent notices, and only on slurmctld's "
            "host; operators may use --dry-run to list the notices that are due"
        )
    return ledgers.read(path), status.read(run_dir / status.FILE_NAME)


def _print_now(current: Status | None, settings: Settings, now_s: float, zone: ZoneInfo) -> None:
    if current is None:
        remark("slurm-gpuctld on this host sends no notices (see its log)")
        return
    if now_s - current.as_of_s > status.FRESH_S:
        remark(
            f"as of {moment(current.as_of_s, zone)}: slurm-gpuctld no longer updates this list (see its log)"
        )
    if not settings.sends:
        remark("notices.yaml has mode: observe: nothing is sent, and no job is ended")
    if not current.outlook:
        click.echo("No notices are due.")
        return
    print_lines(current.outlook, zone)


def _print_sent(ledger: Ledger, limit: int, zone: ZoneInfo) -> None:
    chosen = ledger.notices[-limit:]
    if not chosen:
        return
    click.echo("\nLast notices:")
    rows = [
        (
            moment(one.created_s, zone),
            text(one.user),
            about(one.kind, one.stage),
            text(" ".join(str(run.job_id) for run in one.runs)),
            text(of_notice(one, zone)),
        )
        for one in chosen
    ]
    print_table(("when", "user", "GPUs", "jobs", "result"), rows, whole=("when",), cut=("user",))


def _print_ended(ledger: Ledger, limit: int, zone: ZoneInfo) -> None:
    chosen = ledger.ended[-limit:]
    if not chosen:
        return
    click.echo("\nJobs ended for unused GPUs (`slurm-gpu notices undo JOB` restores a job):")
    rows = [(text(one.id), text(one.user), text(one.name), text(of_end(one, zone))) for one in chosen]
    print_table(("job", "user", "name", "action"), rows, whole=("job",), cut=("user", "name"))
