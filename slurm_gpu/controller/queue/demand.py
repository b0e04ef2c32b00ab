"""Who waits for the next snapshot: what job_submit.lua decided since the last, from decisions.log."""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

_LASTS_S = 3.0
"""A job let in so lately may have come to nothing, and counts until a snapshot says so."""
_AT_ONCE = 1 << 20
"""Bytes of the log that are read, at most; more came in only where nobody could have missed it."""


class Demand(IntEnum):
    """From least to most."""

    NONE = 0
    DECIDED = 1
    """Jobs were asked for: those that came to nothing count until a snapshot has shown that."""
    REFUSED = 2
    """Somebody is at a limit, and waits for room."""


class DecisionsWatch:
    """Looks at what was appended to the log, wherever it is moved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._read_to = 0
        self._seen: dict[Demand, float] = {}

    def demand(self, now: float) -> Demand:
        """What was asked for in the last seconds; `now` on a clock that never goes back."""
        text = self._appended()
        if text:
            self._seen[Demand.DECIDED] = now
        if b" deny " in text:
            self._seen[Demand.REFUSED] = now
        return max((kind for kind, at in self._seen.items() if now - at < _LASTS_S), default=Demand.NONE)

    def _appended(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                known, self._file = self._file, (status.st_dev, status.st_ino)
                begin = self._read_to if self._file == known and self._read_to <= status.st_size else 0
                self._read_to = status.st_size
                if known is None:
                    return b""  # what was there before us concerns nobody any more
                file.seek(max(begin, status.st_size - _AT_ONCE))
                return file.read(status.st_size - file.tell())
        except OSError:
            return b""  # there is no script that decides, or its log is not for us to see
