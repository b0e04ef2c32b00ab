"""Each benchmark runs as it is written in docs/measurements.md: by its path, from anywhere."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAMS = sorted(path for path in BENCH.glob("*.py") if "ArgumentParser(" in path.read_text())
NEEDS = {"gpu_load": "torch"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_it_says_how_it_is_used(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    done = subprocess.run(
        [sys.executable, path, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {path.name}")
