"""`slurm-gpu db`: look after slurm-gpudbd's database, on its host."""

from __future__ import annotations

import os
from pathlib import Path

import click

from slurm_gpu.errors import UsageError


@click.group()
def db() -> None:
    """Look after slurm-gpudbd's database; runs on its host, as the owner of slurm-gpudbd.yaml."""


@db.command()
@click.option(
    "--database-config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the database is, if not /etc/slurm-gpu/slurm-gpudbd.yaml.",
)
@click.option(
    "--backup-to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the backup goes (default: beside a SQLite file; /var/lib/slurm-gpu/backup for MariaDB).",
)
@click.option("--no-backup", is_flag=True, help="Make none: there is one already.")
def upgrade(database_config: Path | None, backup_to: Path | None, *, no_backup: bool) -> None:
    """Bring the tables to this version's schema, after a backup; harmless when they are there already.

    Killed or cut off, it does the rest when it is run again.
    """
    # Only this command needs SQLAlchemy, which a login node does not have.
    from slurm_gpu.database.engine import shown_url
    from slurm_gpu.database.settings import DEFAULT_PATH, default_is_meant, load_settings
    from slurm_gpu.database.upgrading import upgrade_database

    if no_backup and backup_to is not None:
        raise UsageError("--no-backup makes no backup, and so has no use for --backup-to: leave out one")
    if database_config is None and not default_is_meant():
        raise UsageError(
            f"there is no {DEFAULT_PATH}, so the database is not known here: run this on slurm-gpudbd's "
            f"host, or write `url: sqlite:///PATH` or `url: mysql+pymysql://…` into that file, mode 0600"
        )
    url = load_settings(database_config).url
    os.umask(0o077)  # as slurm-gpudbd: what every user may not ask for, none may read from the file
    done = upgrade_database(url, backup=not no_backup, backup_to=backup_to, report=click.echo)
    was = "" if done.before in (None, done.after) else f", had {done.before}"
    click.echo(f"{shown_url(url)} has schema {done.after}{was}")
