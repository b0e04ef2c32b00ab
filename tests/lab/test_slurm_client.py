"""Test the contract of each backend of slurm_gpu.slurm with the installed version of Slurm."""

from __future__ import annotations

import time

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.slurm.client import QueuedJob, SlurmClient
from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.pyslurm_backend import PyslurmClient

SLEEP = "#!/bin/sh\nexec sleep 300\n"


@pytest.fixture(params=["commands", "pyslurm"])
def client(request: pytest.FixtureRequest, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> SlurmClient:
    commands = CommandClient(environ=lab.environment_of("root"))
    if request.param == "commands":
        return commands
    monkeypatch.setenv("SLURM_CONF", str(lab.layout.slurm_conf))  # pyslurm reads it only at import
    pyslurm = PyslurmClient.if_usable(commands)
    if pyslurm is None:
        pytest.skip(f"no pyslurm for Slurm {commands.version()} is installed")
    return pyslurm


def _running(client: SlurmClient, *ids: int) -> dict[int, QueuedJob]:
    def all_run() -> dict[int, QueuedJob]:
        jobs = {job.job_id: job for job in client.jobs(ids)}
        return jobs if [job.state for job in jobs.values()] == ["RUNNING"] * len(ids) else {}

    return wait_for(all_run, 90, f"jobs {ids} run", lambda: str(client.jobs()), 0.3)


def test_settings_and_nodes_are_the_labs(lab: Lab, client: SlurmClient) -> None:
    settings = client.settings()
    assert settings.conf_path == str(lab.layout.slurm_conf)
    nodes = {node.name: node for node in client.nodes()}
    assert set(nodes) == set(lab.nodes)
    assert nodes["n1"].n_gpus == 4
    assert nodes["n1"].shards_per_gpu == 4
    assert "zone1" in nodes["n1"].features


def test_jobs_name_the_gpus_that_slurm_gave_them(lab: Lab, client: SlurmClient) -> None:
    whole = lab.submit("alice", "--gpus=2", "--nodelist=n1", "--job-name=größe | 1", script=SLEEP)
    shared = lab.submit("bob", "--gres=shard:3", "--nodelist=n2", script=SLEEP)
    jobs = _running(client, whole, shared)
    assert jobs[whole].name == "größe | 1"
    assert (jobs[whole].user, jobs[whole].account) == ("alice", "vision")
    assert jobs[whole].tres_allocated["gres/gpu"] == 2
    assert len(jobs[whole].gpu_index["n1"]["gpu"]) == 2
    assert jobs[shared].tres_allocated["gres/shard"] == 3
    assert len(jobs[shared].gpu_index["n2"]["shard"]) == 1
    nodes = {node.name: node for node in client.nodes()}
    assert nodes["n1"].state == "mixed"
    assert sum(nodes["n1"].gpus_allocated.values()) == 2
    assert nodes["n2"].shards_allocated == 3


def test_a_job_name_cannot_pass_for_another_job(lab: Lab, client: SlurmClient) -> None:
    victim = lab.submit("alice", "--gpus=1", "--job-name=victim", script=SLEEP)
    text = lab.output(["scontrol", "-d", "show", "job", str(victim)])
    forged = f"x\n\n{text.replace('alice', 'root')[:900]}"  # Slurm takes names of up to 1023 bytes
    forger = lab.submit("bob", f"--job-name={forged}", "--gpus=1", script=SLEEP)
    jobs = _running(client, victim, forger)
    listed = client.jobs()
    everything = {job.job_id: job for job in listed}
    assert everything[victim].user == jobs[victim].user == "alice"
    assert everything[forger].user == jobs[forger].user == "bob"
    assert len(everything) == len(listed)


def test_accounting_has_each_task_with_its_times(lab: Lab, client: SlurmClient) -> None:
    since_s = int(time.time()) - 60
    array = lab.submit("alice", "--array=0-2", "--gpus=1", script="#!/bin/sh\nsleep 1\n")

    def ended() -> list[int | None]:
        runs = [run for run in client.accounting(since_s) if run.array_job_id == array]
        assert all(run.cluster == client.settings().cluster for run in runs)
        done = [run for run in runs if run.end_s is not None and run.start_s is not None]
        assert all(run.elapsed_s == run.end_s - run.start_s for run in done)  # type: ignore[operator]
        assert all(run.tres_allocated["gres/gpu"] == 1 for run in done)
        return [run.array_task for run in done] if len(done) == 3 else []

    tasks = wait_for(ended, 120, "three tasks end", interval_s=0.5)
    assert sorted(task for task in tasks if task is not None) == [0, 1, 2]
    named = {
        run.array_task for run in client.accounting(since_s, job_ids=[array]) if run.array_job_id == array
    }
    assert named
