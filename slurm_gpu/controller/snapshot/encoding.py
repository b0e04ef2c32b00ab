"""Names as snapshot.txt writes them."""

from __future__ import annotations

from urllib.parse import quote


def encode(name: str) -> str:
    """Letters, digits, `_`, `.` and `-` as they are, every other byte as %XX."""
    return quote(name, safe="").replace("~", "%7E")
