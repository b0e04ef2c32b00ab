"""The lab's commands where there is no lab."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from lab.demo import Difference, show_accuracy
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


@pytest.mark.parametrize("far", [0.4, 3.0])
def test_a_demo_that_is_wrong_says_what_may_cause_it_and_what_to_do(far: float):
    told = io.StringIO()
    good = show_accuracy(Console(file=told), [Difference("1", None, None), Difference("2", far, 0.1)])
    assert good == (far < 1)
    assert f"by at most {far:.2f} percentage points (job 2)" in told.getvalue()
    assert ("A loaded machine can cause this" in told.getvalue()) != good
    assert ("Stop what else runs, and try again" in told.getvalue()) != good
