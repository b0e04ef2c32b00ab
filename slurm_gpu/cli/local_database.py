"""Open the database of this host, for commands that read it without slurm-gpudbd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slurm_gpu.errors import OutsideError, UsageError

if TYPE_CHECKING:  # SQLAlchemy is installed only on slurm-gpudbd's host.
    from slurm_gpu.database.storage.engine import Database


def database_url(database_config: Path | None) -> str:
    """Read the URL of the database from `database_config`, or from the default file of this host."""
    from slurm_gpu.database.settings import DEFAULT_PATH, default_is_meant, load_settings

    if database_config is None and not default_is_meant():
        raise UsageError(
            f"{DEFAULT_PATH} does not exist: run this on slurm-gpudbd's host, write `url: sqlite:///PATH` or "
            "`url: mysql+pymysql://…` into that file (mode 0600), or name another file with --database-config"
        )
    return load_settings(database_config).url


def open_current(url: str) -> Database:
    """Open the database; raise an error unless it exists and has the schema of this version."""
    from slurm_gpu.database.storage.engine import Database, head_revision, shown_url

    database = Database(url)
    if database.is_sqlite and not Path(str(database.url.database)).exists():
        raise UsageError(f"{shown_url(url)} does not exist: slurm-gpudbd creates it at its first start")
    if database.is_due():
        raise OutsideError(
            f"the database has schema {database.schema()}, but this version requires {head_revision()}: "
            "run `slurm-gpu db upgrade`"
        )
    return database
