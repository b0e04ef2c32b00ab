"""Open the database of this host, for commands that read it without slurm-gpudbd."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_gpu.errors import InputError, OutsideError, UsageError

if TYPE_CHECKING:  # SQLAlchemy is installed only on slurm-gpudbd's host.
    from slurm_gpu.database.storage.engine import Database


def database_url(database_config: Path | None) -> str:
    """Read the URL of the database from `database_config`, or from the default file of this host.

    Raise UsageError if the caller may not read this file or a SQLite database.
    """
    from slurm_gpu.database.settings import DEFAULT_PATH, default_is_meant, load_settings, only_for_owner
    from slurm_gpu.database.storage.engine import sqlite_path

    if database_config is None and not default_is_meant():
        raise UsageError(
            f"{DEFAULT_PATH} does not exist: run this on slurm-gpudbd's host, write `url: sqlite:///PATH` or "
            "`url: mysql+pymysql://…` into that file (mode 0600), or name another file with --database-config"
        )
    try:
        url = load_settings(database_config).url
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            raise only_for_owner(Path(error.path)) from None
        raise
    path = sqlite_path(url)
    try:
        is_closed = path is not None and path.exists() and not os.access(path, os.R_OK)
    except PermissionError:
        is_closed = True
    if path is not None and is_closed:
        raise only_for_owner(path)
    return url


def open_current(url: str) -> Database:
    """Open the database; raise an error unless it exists and has the schema of this version."""
    from slurm_gpu.database.storage.engine import Database, head_revision, shown_url, sqlite_path

    database, path = Database(url), sqlite_path(url)
    if path is not None and not path.exists():
        raise UsageError(f"{shown_url(url)} does not exist: slurm-gpudbd creates it at its first start")
    if database.is_due():
        raise OutsideError(
            f"the database has schema {database.schema()}, but this version requires {head_revision()}: "
            "run `slurm-gpu db upgrade`"
        )
    return database
