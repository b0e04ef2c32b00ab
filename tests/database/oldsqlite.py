"""Detect SQL that is too new for the oldest supported SQLite: 3.34, which Python uses on RHEL 9."""

import re
from typing import Any

_NEWER = {
    "HAVING without GROUP BY (3.39)": r"\A(?!.*\bGROUP BY\b).*\bHAVING\b",
    "RIGHT or FULL JOIN (3.39)": r"\b(RIGHT|FULL)\s+(OUTER\s+)?JOIN\b",
    "IS DISTINCT FROM (3.39)": r"\bIS\s+(NOT\s+)?DISTINCT\s+FROM\b",
    "DROP COLUMN (3.35)": r"\bALTER\s+TABLE\b.*\bDROP\s+COLUMN\b",
    "MATERIALIZED (3.35)": r"\bMATERIALIZED\b",
    "-> (3.38)": r"->",
    "unixepoch() (3.38)": r"\bunixepoch\s*\(",
    "STRICT tables (3.37)": r"\)\s*STRICT\s*\Z",
}


def too_new(sql: str) -> list[str]:
    """Return the parts of a statement that SQLite 3.34 does not support."""
    return [what for what, pattern in _NEWER.items() if re.search(pattern, sql, re.IGNORECASE | re.DOTALL)]


def require_old(connection: Any, _: Any, sql: str, *__: Any) -> None:
    """Listen to before_cursor_execute of SQLAlchemy; fail on a statement that is too new."""
    if connection.dialect.name == "sqlite":
        assert not too_new(sql), (too_new(sql), sql)
