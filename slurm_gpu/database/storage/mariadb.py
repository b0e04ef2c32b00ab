"""What MariaDB and MySQL want beside SQL: no statement longer than they take, and how long to wait."""

from __future__ import annotations

from typing import Any

from pymysql.cursors import Cursor
from pymysql.err import DataError
from sqlalchemy import Connection

PACKET_TOO_LARGE = 1153
"""The number of that error."""
_HEAD_BYTES = 64
"""More than what goes before the statement in its packet."""
_CHARACTER_BYTES = 4
"""At most, in UTF-8."""
_LOCK_WAIT = "slurm_gpu_lock_wait_s"


class MeasuredCursor(Cursor):
    """Raises DataError for a statement that is too long.

    The server would close the connection without a word, as if it were away.
    """

    most_bytes = 2**63

    def execute(self, query: Any, args: Any = None) -> int:
        """See pymysql."""
        whole = query if args is None else self.mogrify(query, args)
        if len(whole) * _CHARACTER_BYTES > self.most_bytes:
            n_bytes = len(whole.encode("utf-8", "replace")) if isinstance(whole, str) else len(whole)
            if n_bytes > self.most_bytes:
                limit = self.most_bytes + _HEAD_BYTES
                raise DataError(
                    PACKET_TOO_LARGE,
                    f"{n_bytes} bytes are too much for one statement of MariaDB: its max_allowed_packet is "
                    f"{limit}",
                )
        return super().execute(whole)


def measure_statements(connection: Any, _: object) -> None:
    """Let the cursors of a new connection of pymysql go by what its server takes, which is asked."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (limit,) = cursor.fetchone()
    most_bytes = limit - _HEAD_BYTES
    # pymysql puts as many rows into one statement as keep it shorter than this.
    together = min(Cursor.max_stmt_length, most_bytes)
    limits = {"most_bytes": most_bytes, "max_stmt_length": together}
    connection.cursorclass = type("LimitedCursor", (MeasuredCursor,), limits)


def wait_for_locks(connection: Connection, seconds: int | None, usual_s: int) -> None:
    """Let the statements of this session wait so long for rows that others hold; None: not at all.

    A session begins with `usual_s`.
    """
    if connection.dialect.name == "sqlite":
        return  # which has no locks on rows
    if seconds is None:
        seconds = 0 if getattr(connection.dialect, "is_mariadb", False) else 1  # the least that MySQL knows
    if connection.info.get(_LOCK_WAIT, usual_s) != seconds:
        connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {seconds}")
        connection.info[_LOCK_WAIT] = seconds
