"""The simulated libnvidia-ml.so.1: C sources beside this file, built by ``make`` (see README.md)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.errors import LabError

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libnvidia-ml.so.1"


def build(dest: Path) -> Path:
    """Build the library into directory ``dest``, unless it is up to date, and return its path."""
    made = subprocess.run(
        ["make", "-s", "-C", str(SOURCES), f"DEST={dest.absolute()}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise LabError(f"cannot build {LIBRARY}: {made.stderr.strip()}")
    return dest.absolute() / LIBRARY
