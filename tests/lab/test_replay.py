"""Replay a new policy over jobs that slurm-gpudbd recorded on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: enforce
groups: {vision: {accounts: [vision]}, everyone: {}}
rules:
  - {id: two, for: vision, per: user, why: "Two each.", limits: {gpus_total: 2}}
  - {id: hour, for: everyone, per: job, why: "Others.", limits: {walltime: 1h}, mode: advise}
"""


def test_replay_lists_jobs_that_a_new_policy_would_have_refused(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "new.yaml"
    policy.write_text(POLICY)
    before = lab.output(["date", "+%Y-%m-%dT%H:%M:%S%:z"]).strip()
    wait = ("--output=/dev/null", "--wrap=sleep 900")
    jobs = [
        lab.submit("alice", "--gpus=1", "--time=30", *wait),
        lab.submit("alice", "--gpus=1", "--time=30", *wait),
        lab.submit("alice", "--gpus=1", "--time=30", *wait),  # over the limit
        lab.submit("bob", "--gpus=2", "--time=2:00:00", *wait),  # gets advice
    ]
    recorded = ["slurm-gpu", "jobs", "--all-users", "--since", before, "--json"]

    def all_recorded() -> bool:
        """Wait until accounting has the request of a pending job."""
        runs = json.loads(lab.output(recorded))["runs"]
        return {run["job_id"] for run in runs if run["start_s"] is not None}.issuperset(jobs)

    wait_for(all_recorded, 240, "slurm-gpudbd has imported the jobs", interval_s=1)
    replay = ["slurm-gpu", "policy", "replay", "--since", before, "--json", str(policy)]
    done = lab.run_as("root", replay, check=False)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["submissions"], answer["advised"], answer["errors"]) == (4, 1, [])
    assert [(one["id"], one["user"], one["rules"]) for one in answer["refused"]] == [
        (str(jobs[2]), "alice", ["two"])
    ]
    # A user who does not see all jobs gets no answer.
    policy.chmod(0o644)
    assert lab.run_as("alice", ["slurm-gpu", "policy", "replay"], check=False).returncode == 3
