"""Store how far repeated tasks have progressed, by name."""

from __future__ import annotations

from sqlalchemy import Connection, select

from slurm_gpu.database.storage.schema import watermark
from slurm_gpu.database.storage.upsert import upsert


def get_watermark(connection: Connection, name: str) -> int | None:
    """Return the stored progress of a task, or None if none is stored."""
    return connection.execute(select(watermark.c.value_s).where(watermark.c.name == name)).scalar()


def set_watermark(connection: Connection, name: str, value_s: int) -> None:
    """Store the progress of a task."""
    connection.execute(
        upsert(connection, watermark, ("name",), ("value_s",)), {"name": name, "value_s": value_s}
    )
