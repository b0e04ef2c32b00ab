"""Databases with earlier schemas, for tests of upgrades."""

from __future__ import annotations

from pathlib import Path

import alembic.command
from sqlalchemy import text

from slurm_gpu.database.storage import engine as engine_module
from slurm_gpu.database.storage.engine import Database


def made(url: str, revision: str) -> Database:
    """Create a database of a given schema, or only its folder if the schema is ""."""
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir(exist_ok=True)
    if revision:
        with database.engine.connect() as connection:
            alembic.command.upgrade(engine_module._alembic(connection), revision)
    return database


def fill(database: Database) -> None:
    """Insert rows that an upgrade must keep."""
    with database.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO event (node, boot_id, n, at_s, kind, data) VALUES ('n1', 'b', 1, 5, 'xid', '{}')"
            )
        )
