"""Upgrade the schema: slurm-gpudbd upgrades an empty database, and an admin upgrades any other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu import __version__
from slurm_gpu.database.storage.backup import back_up
from slurm_gpu.database.storage.engine import Database, UnusableDatabaseError, head_revision
from slurm_gpu.text.cells import utc_stamp

COMMAND = "slurm-gpu db upgrade"


def make_ready(database: Database) -> None:
    """Create the tables of an empty database when slurm-gpudbd starts.

    Raise DatabaseError if the database is unreachable, and UnusableDatabaseError if it contains data in
    another schema. Upgrading such a database may take a long time and requires a backup, so an admin must
    start the upgrade.
    """
    if not database.is_due():
        return
    if database.has_data():
        raise UnusableDatabaseError(
            f"the database has the schema {database.schema()}, but slurm-gpudbd {__version__} requires "
            f"{head_revision()}: run `{COMMAND}`, which makes a backup first, then start slurm-gpudbd again; "
            "meanwhile nodes keep their records"
        )
    database.upgrade()


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of an upgrade: the schemas before and after it (None: no tables), and the backup, if any."""

    before: str | None
    after: str | None
    backup: Path | None = None


def upgrade_database(
    url: str,
    *,
    backup: bool = True,
    backup_to: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
    now: Callable[[], float] = time.time,
) -> Upgraded:
    """Back up the database at `url` to `backup_to` and upgrade it, for `slurm-gpu db upgrade`.

    If the database is current or empty, no backup is made. An interrupted upgrade is continued by the next
    call. Raise DatabaseError if the backup or the upgrade fails.
    """
    database = Database(url, answers_within_s=None)
    try:
        due, before, copy = database.is_due(), database.schema(), None
        if due and backup and database.has_data():
            report("making a backup …")
            stamp = utc_stamp(now())
            copy = back_up(database.url, f"before-{head_revision()}-{stamp}", backup_to)
            report(f"backup: {copy}")
        if due:
            database.upgrade()
        return Upgraded(before, database.schema(), copy)
    finally:
        database.dispose()
