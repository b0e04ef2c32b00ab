"""Measure the demand for the next snapshot from the recent decisions of job_submit.lua."""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

# Time for which an admission raises the demand, because a new snapshot must show whether the job exists.
_LASTS_S = 3.0
# Maximum number of bytes read from the log; more bytes arrive only when demand is already high.
_AT_ONCE = 1 << 20


class Demand(IntEnum):
    """Levels of demand for a snapshot, in ascending order."""

    NONE = 0
    DECIDED = 1
    """Jobs were submitted; an admitted job counts until a snapshot shows whether the job exists."""
    REFUSED = 2
    """A job was refused because of a limit, and its user is waiting for resources."""


class DecisionsWatch:
    """Reads the lines that are appended to decisions.log, even across rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._read_to = 0
        self._seen: dict[Demand, float] = {}

    def demand(self, now: float) -> Demand:
        """Return the highest demand within the last few seconds; `now` is a monotonic time."""
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
                    return b""  # content from before the start is not relevant
                file.seek(max(begin, status.st_size - _AT_ONCE))
                return file.read(status.st_size - file.tell())
        except OSError:
            return b""  # no script is installed, or its log is not readable
