"""`slurm-gpu db`: look after slurm-gpudbd's database, on its host."""

from __future__ import annotations

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
def upgrade(database_config: Path | None) -> None:
    """Bring the tables to this version's schema; harmless when they are there already."""
    # Only this command needs SQLAlchemy, which a login node does not have.
    from slurm_gpu.database.engine import shown_url, upgrade_database
    from slurm_gpu.database.settings import DEFAULT_PATH, default_is_meant, load_settings

    if database_config is None and not default_is_meant():
        raise UsageError(
            f"there is no {DEFAULT_PATH}, so the database is not known here: run this on slurm-gpudbd's "
            f"host, or write `url: sqlite:///PATH` or `url: mysql+pymysql://…` into that file, mode 0600"
        )
    url = load_settings(database_config).url
    schema = upgrade_database(url)
    click.echo(f"{shown_url(url)} has schema {schema}")
