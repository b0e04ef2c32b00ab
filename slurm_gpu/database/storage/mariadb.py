"""Handle limits of MariaDB and MySQL that SQL does not specify: statement length and lock timeouts."""

from __future__ import annotations

from typing import Any

from pymysql.cursors import Cursor
from pymysql.err import DataError
from sqlalchemy import Connection

# MariaDB's error number for a statement that is too long.
PACKET_TOO_LARGE = 1153
# Upper limit for the bytes of a packet that precede the statement.
_HEAD_BYTES = 64
# Maximum length of a character in UTF-8.
_CHARACTER_BYTES = 4
_LOCK_WAIT = "slurm_gpu_lock_wait_s"


class MeasuredCursor(Cursor):
    """A cursor that raises DataError for a statement that is too long.

    Otherwise, the server would close the connection without an error, as if it were down.
    """

    most_bytes = 2**63

    def execute(self, query: Any, args: Any = None) -> int:
        """Execute a statement, as in pymysql."""
        whole = query if args is None else self.mogrify(query, args)
        if len(whole) * _CHARACTER_BYTES > self.most_bytes:
            n_bytes = len(whole.encode("utf-8", "replace")) if isinstance(whole, str) else len(whole)
            if n_bytes > self.most_bytes:
                limit = self.most_bytes + _HEAD_BYTES
                raise DataError(
                    PACKET_TOO_LARGE,
                    f"{n_bytes} bytes are too many for one statement of MariaDB: its max_allowed_packet is "
                    f"{limit}",
                )
        return super().execute(whole)


def measure_statements(connection: Any, _: object) -> None:
    """Limit the statements of a new pymysql connection to the server's max_allowed_packet."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (limit,) = cursor.fetchone()
    most_bytes = limit - _HEAD_BYTES
    # pymysql combines rows into one statement up to this length.
    together = min(Cursor.max_stmt_length, most_bytes)
    limits = {"most_bytes": most_bytes, "max_stmt_length": together}
    connection.cursorclass = type("LimitedCursor", (MeasuredCursor,), limits)


def wait_for_locks(connection: Connection, seconds: int | None, usual_s: int) -> None:
    """Set how many seconds this session's statements wait for locked rows; with None, they do not wait.

    `usual_s` is the limit with which a session begins.
    """
    if connection.dialect.name == "sqlite":
        return  # SQLite has no row locks
    if seconds is None:
        seconds = 0 if getattr(connection.dialect, "is_mariadb", False) else 1  # the minimum of MySQL
    if connection.info.get(_LOCK_WAIT, usual_s) != seconds:
        connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {seconds}")
        connection.info[_LOCK_WAIT] = seconds
