"""The lab's commands where there is no lab."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.programs import users_of


@pytest.mark.parametrize("command", [["restart", "slurmctld"], ["as", "alice", "true"]])
def test_what_needs_a_lab_says_so(command: list[str], tmp_path: Path):
    environ = os.environ | {"SLURM_GPU_LAB_DIR": str(tmp_path / "lab")}
    done = subprocess.run(
        [sys.executable, "-m", "lab", *command], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "lab: the lab is not up; bring it up with lab/up\n")


def test_who_keeps_a_directory_in_use_is_found(tmp_path: Path):
    (tmp_path / "below").mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path / "below") as process:
        try:
            assert list(users_of(tmp_path)) == [process.pid]
        finally:
            process.kill()
