"""Encode names for snapshot.txt."""

from __future__ import annotations

from urllib.parse import quote


def encode(name: str) -> str:
    """Keep letters, digits, `_`, `.` and `-`; write every other byte as %XX."""
    return quote(name, safe="").replace("~", "%7E")
