"""Provide the real code of the previous release from the repository's history."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BEFORE = "0.1.0"
COMMITS = {"0.1.0": "b8b32fc7f59f4e22abc295ec11d8c049e33ad879"}
_PARTS = ("slurm_gpu", "prolog", "epilog", "etc", "plugins")


def unpacked(version: str, directory: Path) -> Path:
    """Unpack a release below `directory`; skip the test if the history does not contain the release."""
    packed = directory / f"{version}.tar"
    command = ["git", "-C", str(REPOSITORY), "archive", f"--output={packed}", COMMITS[version], "--", *_PARTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed, and the release before lies in the repository's history")
    if done.returncode:
        pytest.skip(
            f"the code of {version} is not in this clone's history (git fetch --unshallow brings it): "
            f"{done.stderr.strip()}"
        )
    tree = directory / version
    with tarfile.open(packed) as archive:
        archive.extractall(tree, filter="data")
    return tree


def environment(tree: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that imports slurm_gpu from `tree` and finds no Slurm."""
    kept = {name: os.environ[name] for name in ("TMPDIR", "LANG", "HOME") if name in os.environ}
    return {**kept, "PATH": "/nowhere", "PYTHONPATH": str(tree), **more}


def run(tree: Path, *arguments: str, stdin: str = "") -> str:
    """Run Python with the slurm_gpu of `tree`; return its output, and fail on a nonzero exit code."""
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        input=stdin,
        env=environment(tree),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
