"""The lab's commands where there is no lab."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", [["restart", "slurmctld"], ["as", "alice", "true"]])
def test_what_needs_a_lab_says_so(command: list[str], tmp_path: Path):
    environ = os.environ | {"SLURM_GPU_LAB_DIR": str(tmp_path / "lab")}
    done = subprocess.run(
        [sys.executable, "-m", "lab", *command], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "lab: the lab is not up; bring it up with lab/up\n")
