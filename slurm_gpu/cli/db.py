"""`slurm-gpu db`: look after slurm-gpudbd's database, on its host."""

from __future__ import annotations

from pathlib import Path

import click


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
    from slurm_gpu.database.engine import upgrade_database
    from slurm_gpu.database.settings import load_settings

    schema = upgrade_database(load_settings(database_config).url)
    click.echo(f"the database has schema {schema}")
