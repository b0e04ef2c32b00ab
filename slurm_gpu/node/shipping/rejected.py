"""Write items that slurm-gpudbd rejects to files, so that admins can inspect them."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from slurm_gpu.files.atomic import write_whole

MAX_REJECTED = 10_000
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class RejectedFiles:
    """Files in `directory`, one per item; the directory is created with the first file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._n: int | None = None

    def keep(self, key: str, text: str) -> None:
        """Write an item to disk; raise OSError on failure, or if there are already MAX_REJECTED files."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if self._n is None:
            self._n = sum(1 for _ in self.directory.iterdir())
        if self._n >= MAX_REJECTED:
            raise OSError(errno.EDQUOT, f"there are {MAX_REJECTED} files already", str(self.directory))
        self._n += 1
        write_whole(self.directory / f"{_UNSAFE.sub('_', key)}.json", text + "\n")
