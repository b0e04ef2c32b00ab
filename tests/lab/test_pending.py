"""Limits on pending jobs alone, in a real slurmctld with and without a snapshot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

from .seconds import next_second

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {vision: {accounts: [vision]}}
rules: [{id: queue, for: vision, per: user, why: Others queue., limits: {jobs_pending: 2}}]
"""
JOB = ("--gpus=1", "--time=30", "--output=/dev/null", "--wrap=sleep 900")
DEADLINE_S = 60.0


@pytest.fixture(params=[False, True], ids=["queue", "snapshot"])
def lab(lab_with: Callable[..., Lab], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab = lab_with(services=False, controller=request.param)
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", "--replace", str(path)])
    yield lab
    lab.cancel_all_jobs()
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


def run(lab: Lab, n: int) -> bool:
    """Return whether this many jobs are running according to Slurm and, if there is one, the snapshot."""
    snapshot = lab.layout.controller_run / "snapshot.txt"
    if snapshot.exists() and f"jobs_run={n} " not in snapshot.read_text():
        return False
    return lab.output(["squeue", "-h", "-t", "running", "-o", "%A"]).count("\n") == n


def test_running_jobs_do_not_count(lab: Lab) -> None:
    for n in range(1, 4):
        job = lab.submit("alice", *JOB)
        wait_for(functools.partial(run, lab, n), DEADLINE_S, f"{n} jobs run")
    # Slurm refreshes the script's job table only after a job has changed, and at most once per second.
    next_second()
    lab.run_as("root", ["scontrol", "update", f"JobId={job}", "Comment=seen"])
    later = ("--begin=now+1hour", *JOB)
    accepted = [lab.run_as("alice", ["sbatch", *later], check=False) for _ in range(3)]
    assert [one.returncode for one in accepted] == [0, 0, 1]
    assert "jobs pending: used 2" in accepted[-1].stderr
    shown = lab.run_as("alice", ["slurm-gpu", "quota"]).stdout
    assert "jobs pending" in shown
