"""Test limits on usage that slurm-gpuctld's snapshot counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.controller.snapshot.snapshot_file import QueryTiming, read_fresh

from .test_limits import LIMIT, PENDING, apply, queued, sbatch

pytestmark = pytest.mark.long

DEADLINE_S = 120.0
"""A deadline for asynchronous work of Slurm and slurm-gpuctld on a busy host."""
MARGIN_S = 0.7
"""The longest time in seconds between a decision and the poll that must contain its job."""
SLOW_S = 1.0
"""The time that the script allows slurmctld for adding a job."""


@pytest.fixture(scope="module")
def bare(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    """Start Slurm without native limits, our job_submit.lua, and slurm-gpuctld."""
    lab = lab_with(services=False, native_limits=False, controller=True)
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture
def lab(bare: Lab, tmp_path: Path) -> Iterator[Lab]:
    bare.daemons["slurm-gpuctld"].start()
    apply(bare, tmp_path / "policy.yaml", "Five each.")
    yield bare
    bare.cancel_all_jobs()
    settle(bare)


def last_poll(lab: Lab) -> QueryTiming:
    """Return the time of slurm-gpuctld's last poll of slurmctld, in seconds of uptime."""
    snapshot = read_fresh(lab.layout.controller_run / "snapshot.txt", time.time())
    return snapshot.timing if snapshot and snapshot.timing else QueryTiming(0.0, 0.0, "")


def settle(lab: Lab) -> None:
    """Wait for a snapshot that started late enough to contain all changes."""
    done_s = time.monotonic()
    wait_for(
        lambda: covers_all_since(last_poll(lab), done_s),
        DEADLINE_S,
        "slurm-gpuctld has seen it",
        interval_s=0.2,
    )


def covers_all_since(polled: QueryTiming, done_s: float) -> bool:
    """Return whether the poll is late enough for the script to drop earlier submissions without a job."""
    return polled.began_s - done_s >= MARGIN_S + polled.took_s + SLOW_S


def test_tries_and_what_slurm_refuses_leave_no_false_refusal(lab: Lab) -> None:
    """Test that users have the whole limit within two seconds after fifty submissions of each kind."""
    lab.submit("bob", *PENDING)
    settle(lab)
    for _ in range(50):
        sbatch(lab, "--test-only", *PENDING)
        sbatch(lab, "--reservation=nope", *PENDING)
    tried_s = time.monotonic()

    def passes() -> bool:
        polled = last_poll(lab)
        refused = sbatch(lab, *PENDING).returncode != 0
        assert not (refused and covers_all_since(polled, tried_s)), "a false refusal"
        return not refused

    for _ in range(LIMIT):
        wait_for(passes, DEADLINE_S, "there is room", interval_s=0.2)
    assert sbatch(lab, *PENDING).returncode == 1


def test_released_limits_are_noticed_on_an_idle_cluster(lab: Lab) -> None:
    for _ in range(LIMIT):
        lab.submit("alice", *PENDING)
    settle(lab)
    lab.run_as("alice", ["scancel", queued(lab)[0]])
    wait_for(lambda: sbatch(lab, *PENDING).returncode == 0, DEADLINE_S, "the room is seen", interval_s=0.5)


FORMS = (
    ("--gpus=1",),
    ("--gpus=a100:2", "--mem=4G", "--cpus-per-task=3"),
    ("--gpus=2", "--cpus-per-gpu=4", "--mem-per-gpu=6G"),
    ("--gres=gpu:1", "--nodes=2", "--ntasks-per-node=2", "--mem-per-cpu=500M"),
    ("--gpus-per-task=1", "--ntasks=3"),
    ("--gres=shard:2", "--mem=3G"),
    ("--cpus-per-task=5",),
    ("--gpus=1", "--mem=0"),
    ("--gpus=1", "--array=0-2"),
)


def test_the_snapshot_counts_what_the_script_counted(lab: Lab) -> None:
    """Compare the GPUs, CPUs and memory of each form of request at admission and in the snapshot."""
    policy = lab.layout.root / "counting-policy.yaml"
    policy.write_text(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        "  - {id: r, for: all, per: user, why: W., limits: {cpus_total: 9999, gpus_total: {a100: 999}}}\n"
    )
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    run = lab.layout.controller_run
    admitted = {"jobs": 0, "mgpu": 0, "cpus": 0, "mib": 0}

    def counted() -> dict[str, int]:
        text = (run / "snapshot.txt").read_text()
        use = next((row for row in text.splitlines() if row.startswith("use user:alice@all ")), "")
        fields = dict(word.split("=") for word in use.split()[2:])
        return {key: int(fields.get(f"{key}_pend", 0)) for key in admitted}

    for form in FORMS:
        result = sbatch(lab, *form, *PENDING)
        assert result.returncode == 0, (form, result.stderr)
        line = (run / "decisions.log").read_text().splitlines()[-1]
        said = dict(word.split("=", 1) for word in line.split() if "=" in word)
        admitted["jobs"] += int(said["tasks"])
        for key in ("mgpu", "cpus", "mib"):
            admitted[key] += int(said[key])
        wait_for(lambda: counted()["jobs"] == admitted["jobs"], DEADLINE_S, "the snapshot shows the job")
        assert counted() == admitted, form
