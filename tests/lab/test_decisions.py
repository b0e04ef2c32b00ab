"""Test that the database keeps the decisions of job_submit.lua after the log is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.cli.policy.explain_job import token_of
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import load_config

WITHIN_S = 60.0


@pytest.fixture
def lab(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    cluster = lab_with()
    yield cluster
    for daemon in cluster.daemons.values():
        daemon.start()
    cluster.cancel_all_jobs()


def submit(lab: Lab) -> tuple[int, str]:
    """Submit a job of alice's that waits; return its ID and its token."""
    later = ["sbatch", "--parsable", "--begin=now+1hour", "--gpus=1", "--output=/dev/null", "--wrap=true"]
    job = int(lab.run_as("alice", later).stdout)
    shown = lab.output(["squeue", "--noheader", f"--jobs={job}", "--Format=admin_comment:200"])
    token = token_of(shown.strip())
    assert token is not None, shown
    return job, token


def kept(lab: Lab, token: str) -> int:
    with DatabaseClient(load_config(lab.layout.site_file)) as database:
        return len(database.decisions(token))


def test_a_decision_is_in_the_database_though_slurm_gpuctld_was_killed(lab: Lab) -> None:
    daemon = lab.daemons["slurm-gpuctld"]
    daemon.kill9()
    job, token = submit(lab)
    daemon.start()
    wait_for(lambda: kept(lab, token) == 1, WITHIN_S, "the decision is shipped")
    # alice cannot read the log, so the answer comes from slurm-gpudbd.
    output = lab.run_as("alice", ["slurm-gpu", "explain", str(job)]).stdout
    assert output.startswith(f"Job {job} ")
    assert "may see more" not in output
