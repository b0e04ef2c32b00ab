"""`slurm-gpu colocation plan` reports how much of the price is saved, with a planner that needs no model."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine

SPEEDS = """\
gpu_model,application,alone_per_s,speed,co_runner_1
card,light,1,,
card,light,,0.97,light
card,light,,0.5,loner
card,loner,1,,
card,loner,,0.5,light
card,loner,,0.4,loner
"""


@pytest.mark.parametrize(("names", "shares"), [(("light", "light"), True), (("loner", "loner"), False)])
def test_a_price_is_saved_only_if_jobs_share(
    slurm_gpu: CommandLine, tmp_path: Path, names: tuple[str, ...], shares: bool
) -> None:
    table, jobs = tmp_path / "speeds.csv", tmp_path / "jobs.csv"
    table.write_text(SPEEDS)
    jobs.write_text("application,seconds\n" + "".join(f"{name},100\n" for name in names))
    argv = ("colocation", "plan", str(table), str(jobs), "--planner", "annealing")
    assert slurm_gpu(*argv) == 0
    assert ("Price saved, cost 1" in slurm_gpu.out) is shares
    assert ("No job shares a GPU, so nothing is saved" in slurm_gpu.out) is not shares
    assert slurm_gpu(*argv, "--json") == 0
    saved = json.loads(slurm_gpu.out)["saved"]
    assert {part is not None for part in saved.values()} == {shares}


def test_missing_arguments_are_explained(slurm_gpu: CommandLine) -> None:
    assert slurm_gpu("colocation", "plan") == 2
    assert "missing argument 'TABLE'. TABLE is a file of measured speeds" in slurm_gpu.err
    assert slurm_gpu("colocation", "plan", "speeds.csv") == 2
    assert "missing argument 'JOBS'. JOBS is a CSV file with the columns application,seconds" in slurm_gpu.err
