"""Which daemons run on this host, as /proc tells."""

from __future__ import annotations

import os
from pathlib import Path

_WORDS = 4
"""An interpreter and its options may come before the name."""


def daemons(proc: Path, name: str) -> list[list[str]]:
    """The command lines of every process of that name that runs here."""
    found = []
    for process in proc.glob("[0-9]*"):
        try:
            words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")]
        except OSError:
            continue  # it has ended meanwhile
        if any(Path(word).stem == name for word in words[:_WORDS]):
            found.append(words)
    return found
