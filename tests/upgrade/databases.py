"""Databases as upgrades find them."""

from __future__ import annotations

from pathlib import Path

import alembic.command
from sqlalchemy import text

from slurm_gpu.database.storage import engine as engine_module
from slurm_gpu.database.storage.engine import Database


def made(url: str, revision: str) -> Database:
    """A database of that schema; only its folder where that is ""."""
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir(exist_ok=True)
    if revision:
        with database.engine.connect() as connection:
            alembic.command.upgrade(engine_module._alembic(connection), revision)
    return database


def fill(database: Database) -> None:
    """Rows that an upgrade has to keep."""
    with database.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO event (node, boot_id, n, at_s, kind, data) VALUES ('n1', 'b', 1, 5, 'xid', '{}')"
            )
        )
