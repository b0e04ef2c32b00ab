"""The files whose prose is checked."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = {".md", ".txt", ".html", ".svg"}
_SUFFIXES = _PAGES | {".py", ".lua", ".js", ".css", ".yaml", ".yml", ".sh", ".toml", ""}
# Recorded output of Slurm and drivers, and generated files.
_OTHERS = (
    "tests/slurm/data/",
    "tests/upgrade/data/",
    "LICENSE",
    "docs/configuration.md",
    "tests/prose/",
    "bench/results/",
)


def prose_files(*below: Path) -> Iterator[Path]:
    """Return the tracked files with prose, all or those in some folders."""
    command = ["git", "ls-files", "--", *below]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = _ROOT / name
        is_lock_file = path.suffix == ".txt" and name.startswith("packaging/requirements/")
        is_prose = path.suffix in _SUFFIXES and not name.startswith(_OTHERS) and not is_lock_file
        if is_prose and path.is_file():
            yield path
