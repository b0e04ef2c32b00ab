"""Encode names for snapshot.txt."""

from __future__ import annotations

from urllib.parse import quote


def encode(name: str) -> str:
    """Return a name in which all bytes except letters, digits, `_`, `.` and `-` are written as %XX."""
    return quote(name, safe="").replace("~", "%7E")
