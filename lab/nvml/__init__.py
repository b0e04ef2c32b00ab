"""The simulated libnvidia-ml.so.1 and an adjustable clock, in C, which ``make`` builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.errors import LabError

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libnvidia-ml.so.1"
WALLCLOCK = "libwallclock.so"


def build(dest: Path) -> Path:
    """Build the library into directory ``dest``, unless it is up to date, and return its path."""
    return _make(dest, LIBRARY)


def build_wallclock(dest: Path) -> Path:
    """Build the library that gives a node its own wall clock (wallclock.c) in the same way."""
    return _make(dest, WALLCLOCK)


def _make(dest: Path, name: str) -> Path:
    made = subprocess.run(
        ["make", "-s", "-C", str(SOURCES), f"DEST={dest.absolute()}", str(dest.absolute() / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise LabError(f"cannot build {name}: {made.stderr.strip()}")
    return dest.absolute() / name
