"""Test commands of the lab without starting a lab."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from lab import demo
from lab.cluster import Lab
from lab.demo import Difference, show_accuracy
from lab.programs import users_of


@pytest.mark.parametrize("command", [["restart", "slurmctld"], ["as", "alice", "true"]])
def test_commands_that_need_a_lab_report_a_missing_one(command: list[str], tmp_path: Path):
    environ = os.environ | {"SLURM_GPU_LAB_DIR": str(tmp_path / "lab")}
    done = subprocess.run(
        [sys.executable, "-m", "lab", *command], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "lab: the lab is not up; bring it up with lab/up\n")


def test_the_process_that_uses_a_directory_is_found(tmp_path: Path):
    (tmp_path / "below").mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path / "below") as process:
        try:
            assert list(users_of(tmp_path)) == [process.pid]
        finally:
            process.kill()


@pytest.mark.parametrize("far", [0.4, 3.0])
def test_an_inaccurate_demo_shows_possible_causes_and_advice(far: float):
    output = io.StringIO()
    good = show_accuracy(Console(file=output), [Difference("1", None, None), Difference("2", far, 0.1)])
    assert good == (far < 1)
    assert f"by at most {far:.2f} percentage points (job 2)" in output.getvalue()
    assert ("A loaded machine can cause this" in output.getvalue()) != good
    assert ("Stop other programs and try again" in output.getvalue()) != good


def test_the_demo_waits_for_a_row_without_a_mean() -> None:
    """The first record of a job may contain only its memory."""
    whole = {"uGPUcore": 40.0, "uGPUmem": 10.0, "coverage": 1.0}
    lab = Lab()  # the lab is not started, because the run is already known
    for row, compared in (
        (whole, True),
        (whole | {"uGPUcore": 40.0000001}, True),
        (whole | {"uGPUcore": None}, False),
        (whole | {"coverage": None}, False),
    ):
        assert demo._is_of_whole_records(lab, {"id": "7", "nGPU": 1, **row}, {"7": whole}) is compared
