"""Like sacct itself, the replacement for sacct prints a job only if that job is queried."""

import subprocess
from pathlib import Path

import pytest

from bench.scale_slurm import SimulatedJob, install, write_jobs

SUBMITTED_S = 1_000_000 - 60


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    place = tmp_path / "slurm"
    install(place, [("gpu1", "127.100.0.1")])
    write_jobs(place, [SimulatedJob(n, "gpu1", SUBMITTED_S + 60, 2_000_000) for n in (1, 2, 12)], over=False)
    return place


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        ((f"--endtime=uts{SUBMITTED_S}",), ["1", "2", "12"]),
        ((f"--endtime=uts{SUBMITTED_S - 1}",), []),
        (("--endtime=uts4102444800", "--jobs=2,77,12"), ["2", "12"]),
        (("--endtime=uts4102444800", "--jobs=77"), []),
    ],
)
def test_it_answers_of_that_time_and_those_jobs(
    commands: Path, options: tuple[str, ...], jobs: list[str]
) -> None:
    argv = [str(commands / "sacct"), "--delimiter=<0af1>", "--starttime=uts0", *options]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert [line.split("<0af1>")[0] for line in output.splitlines()] == jobs
