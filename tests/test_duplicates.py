"""No ten lines of code appear in two modules."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Migrations remain unchanged when tables change.
LEFT_OUT = ROOT / "slurm_gpu/database/storage/migrations/versions"


def test_no_ten_lines_are_in_two_modules():
    """Comments and docstrings do not count."""
    modules = [path for path in (ROOT / "slurm_gpu").rglob("*.py") if path.parent != LEFT_OUT]
    # symilar is part of pylint. pylint's own check takes a minute, because it also separates imports.
    symilar = [Path(sys.executable).with_name("symilar"), "--ignore-comments", "--ignore-docstrings"]
    done = subprocess.run(
        [*symilar, "--duplicates=10", *modules], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "TOTAL lines=" in done.stdout
    assert " similar lines in " not in done.stdout, done.stdout
