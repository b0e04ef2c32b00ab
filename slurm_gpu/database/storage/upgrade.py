"""From one schema to the next: what slurm-gpudbd does by itself, and what an admin asks for."""

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
    """Make the tables of a database that holds nothing yet; for slurm-gpudbd at its start.

    Raises DatabaseError when the database is away, and UnusableDatabaseError where it holds something in
    another schema: an upgrade may take long and needs a backup first, which is for an admin to ask for.
    """
    if not database.is_due():
        return
    if database.holds_anything():
        raise UnusableDatabaseError(
            f"the database has the schema {database.schema()}, slurm-gpudbd {__version__} needs "
            f"{head_revision()}: run `{COMMAND}`, which makes a backup first, then start slurm-gpudbd again; "
            "meanwhile nodes keep their records"
        )
    database.upgrade()


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What an upgrade did: the schemas before and after it, None where there was none yet."""

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
    """Upgrade the database at `url`, for `slurm-gpu db upgrade`; first a copy goes to `backup_to`.

    Nothing is copied where nothing is to be done, or there is nothing yet. Killed at any moment, it does the
    rest when it is run again. Raises DatabaseError.
    """
    database = Database(url, answers_within_s=None)
    try:
        due, before, copy = database.is_due(), database.schema(), None
        if due and backup and database.holds_anything():
            report("making a backup …")
            stamp = utc_stamp(now())
            copy = back_up(database.url, f"before-{head_revision()}-{stamp}", backup_to)
            report(f"backup: {copy}")
        if due:
            database.upgrade()
        return Upgraded(before, database.schema(), copy)
    finally:
        database.dispose()
