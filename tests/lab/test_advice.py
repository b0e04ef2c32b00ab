"""Run the command that a refusal advises; a real Slurm without limits of its own must accept it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

from .seconds import leave_no_job, next_second

LATER = ("--begin=now+1hour", "--time=10", "--output=/dev/null", "--wrap=true")
POLICY = """\
version: 1
mode: enforce
groups: {all: {}}
rules:
  - {id: share, for: all, per: user, why: W., limits: {gpus_total: 8}}
"""


@pytest.fixture(scope="module")
def lab(lab_with: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Only Slurm and our job_submit.lua, with eight GPUs for each user."""
    lab = lab_with(services=False, native_limits=False)
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


def sbatch(lab: Lab, *options: str) -> subprocess.CompletedProcess[str]:
    return lab.run_as("alice", ["sbatch", *options, *LATER], check=False)


def until(lab: Lab, expected: str, *options: str) -> str:
    """Return the final output of sbatch; the job table is renewed at most once per second."""

    def answer() -> str:
        result = sbatch(lab, *options)
        text = result.stdout + result.stderr
        return text if expected in text else ""

    return wait_for(answer, 20, f"sbatch says {expected!r}", lambda: sbatch(lab, *options).stderr, 0.5)


def advised(refused: str, *options: str) -> list[str]:
    """Return the options, replaced where a refusal advises others."""
    found = re.search(r"sbatch (--.*) \.\.\.", refused)
    assert found is not None, refused
    names = {word.partition("=")[0] for word in found[1].split()}
    return [option for option in options if option.partition("=")[0] not in names] + found[1].split()


@pytest.mark.parametrize(
    ("options", "smaller"),
    [
        (("--gpus=20", "--gpus-per-node=4"), ["--nodes=2", "--gpus=8", "--gpus-per-node=4"]),
        (("--ntasks=20", "--gpus-per-task=2"), ["--gpus-per-task=2", "--ntasks=4"]),
        (("--gres=gpu:4", "--nodes=4"), ["--gres=gpu:4", "--nodes=2"]),
    ],
)
def test_gpus_in_mixed_forms_are_made_smaller_together(
    lab: Lab, options: tuple[str, ...], smaller: list[str]
) -> None:
    leave_no_job(lab)
    assert advised(until(lab, "used 0, limit 8", *options), *options) == smaller
    until(lab, "Submitted", *smaller)

    full = until(lab, "used 8", *options)
    assert "scancel" not in full, full  # cancelling would not help: the job alone exceeds the limit
    assert "When other jobs have ended, try" in full
    assert advised(full, *options) == smaller

    message = until(lab, "scancel", *smaller)
    room = re.search(r"^sbatch: error: +(scancel \d+)$", message, re.MULTILINE)
    assert room is not None, message
    next_second()
    lab.run_as("alice", room[1].split())
    next_second()
    until(lab, "Submitted", *smaller)
