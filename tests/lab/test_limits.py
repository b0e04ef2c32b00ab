"""Test the limits of the policy on a real Slurm without native limits."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

from .seconds import leave_no_job, next_second

LIMIT = 5

POLICY = """\
version: 1
mode: enforce
contact: gpu-help@lab.example
groups:
  vision: {accounts: [vision]}
  everyone: {}
rules:
  - id: five
    for: vision
    per: user
    why: "%s"
    limits: {jobs_total: 5, gpus_total: 6}
  - id: size
    for: everyone
    per: job
    why: "Others get a turn."
    limits: {gpus: 3, walltime: 2h}
"""
PENDING = ("--begin=now+1hour", "--time=10", "--output=/dev/null", "--wrap=true")


@pytest.fixture(scope="module")
def bare(lab_with: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start only Slurm with our job_submit.lua, without native limits."""
    lab = lab_with(services=False, native_limits=False)
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    apply(lab, policy, "Five each.")
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture
def lab(bare: Lab) -> Iterator[Lab]:
    yield bare
    leave_no_job(bare)


def apply(lab: Lab, policy: Path, why: str) -> None:
    policy.write_text(POLICY % why)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])


def sbatch(lab: Lab, *arguments: str, user: str = "alice") -> subprocess.CompletedProcess[str]:
    return lab.run_as(user, ["sbatch", *arguments], check=False)


def message_lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return our script's message without the prefix and last line of sbatch and without "just submitted"."""
    lines = [
        re.sub(r" \(\d+ just submitted\)", "", line.removeprefix("sbatch: error: "))
        for line in result.stderr.splitlines()
    ]
    return [line for line in lines if not line.startswith("Batch job submission failed")]


def queued(lab: Lab) -> list[str]:
    """Return the IDs of alice's running and pending jobs, with each array task separately."""
    states = "--states=PENDING,RUNNING,SUSPENDED"  # a cancelled job may still be completing
    return lab.output(["squeue", "--noheader", "--array", "--user=alice", states, "--format=%i"]).split()


def test_a_refusal_reaches_the_user_with_a_command_that_is_accepted(lab: Lab) -> None:
    lab.submit("alice", "--gpus=2", *PENDING)
    lab.submit("alice", "--gpus=2", *PENDING)
    refused = sbatch(lab, "--gpus=5", "--time=3:00:00", "--begin=now+1hour", "--wrap=true")
    assert refused.returncode == 1
    lines = message_lines(refused)
    assert lines[1:3] == [
        "  GPUs running + pending: used 4, limit 6, requested 5.",
        "Refused by rule size: Others get a turn.",
    ]
    assert lines[3:] == [
        "  GPUs in one job: limit 3, requested 5.",
        "  time limit: limit 02:00:00, requested 03:00:00.",
        "  Try: sbatch --gpus=2 --time=02:00:00 ...",
        "  Questions: gpu-help@lab.example",
    ]
    advised = lines[5].partition("sbatch ")[2].removesuffix(" ...").split()
    assert sbatch(lab, *advised, "--begin=now+1hour", "--wrap=true").returncode == 0
    assert "limit 6, requested 1" in "".join(message_lines(sbatch(lab, "--gpus=1", *PENDING)))


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("--gres=gpu:4", "--time=10"), "size"),
        (("--gres=gpu:a100:2", "--nodes=2", "--time=10"), "size"),
        (("--gpus-per-node=2", "--nodes=1-3", "--time=10"), "size"),
        (("--gpus-per-task=2", "--ntasks=2", "--time=10"), "size"),
        (("--gres=gpu:1", "--array=0-5", "--time=10"), "five"),
        (("--gres=shard:5", "--time=10"), "one-gpu"),
        (("--gres=shard:4", "--nodes=4", "--time=10"), "size"),
        (("--time=0",), "size"),
        (("--exclusive", "--time=10"), "size"),
    ],
)
def test_every_form_of_a_request_is_limited(lab: Lab, arguments: tuple[str, ...], rule: str) -> None:
    refused = sbatch(lab, *arguments, "--begin=now+1hour", "--wrap=true")
    assert message_lines(refused)[0].startswith(f"Refused by rule {rule}:"), refused.stderr
    explained = lab.run_as(
        "alice", ["slurm-gpu", "explain", "--", "sbatch", *arguments, "--wrap=true"], check=False
    )
    assert explained.returncode == 1
    assert [
        line.removeprefix("sbatch: error: ") for line in explained.stdout.splitlines()[:-1]
    ] == message_lines(refused)


def test_submissions_refused_by_slurm_itself_are_distinguished_from_queued_ones(lab: Lab) -> None:
    lab.submit("bob", *PENDING)  # slurmctld saves no job_state before the first job
    wait_for((lab.layout.slurmctld / "job_state").exists, 60, "slurmctld saves its jobs")
    next_second()
    with ThreadPoolExecutor() as pool:  # in parallel: tries are forgotten after some seconds
        tries = [pool.submit(sbatch, lab, "--reservation=nope", "--gpus=2", *PENDING) for _ in range(3)]
    assert all("reservation is invalid" in each.result().stderr for each in tries)
    refused = sbatch(lab, "--gpus=2", *PENDING).stderr
    assert "used 6 (6 just submitted), limit 6, requested 2" in refused
    seconds = re.search(
        r"If Slurm refused (?:it|them), try again in (\d+) s", re.sub(r"\s*sbatch: error:\s*", " ", refused)
    )
    assert seconds is not None, refused
    time.sleep(int(seconds[1]))  # the wait that the message advises
    assert sbatch(lab, "--gpus=2", *PENDING).returncode == 0


def test_a_pending_range_of_nodes_counts_with_its_most(lab: Lab, tmp_path: Path) -> None:
    """Test that the range is read from Slurm's job record after the script that accepted it is replaced."""
    lab.submit("alice", "--nodes=1-3", "--gres=gpu:1", *PENDING)
    next_second()
    apply(lab, tmp_path / "policy.yaml", "Five each, read again.")

    def refused() -> str:
        lab.submit("bob", *PENDING)  # renews the script's job table
        next_second()
        return sbatch(lab, "--gpus=4", *PENDING).stderr

    # While the script remembers the admission, the message reports the GPUs as "just submitted".
    wait_for(lambda: "used 3, limit 6, requested 4" in refused(), 60, "the table has her job", refused)
    explain = ["slurm-gpu", "explain", "--", "sbatch", "--gpus=4", "--time=10", "--wrap=true"]
    assert "used 3, limit 6, requested 4" in lab.run_as("alice", explain, check=False).stdout


def test_interactive_jobs_are_refused_too(lab: Lab) -> None:
    for command in ("srun", "salloc"):
        ask = [command, "--gpus=4", "--time=10", "true"]
        refused = lab.run_as("alice", ask, check=False)
        assert refused.returncode != 0
        assert "Refused by rule size" in refused.stderr
        assert f": {command} --gpus=3 ..." in refused.stderr
        explained = lab.run_as("alice", ["slurm-gpu", "explain", "--", *ask], check=False)
        assert f"{command}: error:   Try: {command} --gpus=3 ..." in (explained.stdout.splitlines())


def test_explain_submits_nothing_and_counts_what_is_queued(lab: Lab) -> None:
    lab.submit("alice", "--array=0-4", *PENDING)
    explain = ["slurm-gpu", "explain", "--", "sbatch", "--time=10", "--wrap=true"]
    assert lab.run_as("alice", explain, check=False).returncode == 1
    assert lab.run_as("bob", explain, check=False).returncode == 0
    as_alice = [*explain[:2], "--user", "alice", "--json", *explain[2:]]
    assert '"accepted": false' in lab.run_as("root", as_alice, check=False).stdout
    assert len(queued(lab)) == LIMIT


def test_an_accepted_job_cannot_be_grown_past_a_limit(lab: Lab) -> None:
    job = lab.submit("alice", "--gres=gpu:1", *PENDING)

    def update(user: str, *changes: str) -> int:
        command = ["scontrol", "update", f"JobId={job}", *changes]
        return lab.run_as(user, command, check=False).returncode

    assert update("alice", "TresPerNode=gres:gpu:2", "NumNodes=2") != 0
    assert update("alice", "TresPerNode=gres:gpu:4") != 0
    assert update("alice", "TresPerNode=gres:gpu:2") == 0
    assert update("alice", "NumNodes=2") != 0
    assert update("alice", "JobName=renamed") == 0
    assert update("root", "TresPerNode=gres:gpu:4") == 0


GROWTH = """\
version: 1
mode: enforce
groups:
  all: {}
  long: {qos: [sg-long]}
  night: {partitions: [night]}
rules:
  - {id: size, for: all, per: job, why: "Others.", limits: {gpus: 4, walltime: 1h, array_tasks: 4}}
  - {id: long, for: long, per: job, why: "Long jobs are small.", limits: {gpus: 1}}
  - {id: night, for: night, per: user, why: "Others.", limits: {gpus_total: 3}}
"""


@pytest.fixture
def night(lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """Apply GROWTH, and create the QOS and the partition that this policy names."""
    policy = tmp_path / "growth.yaml"
    policy.write_text(GROWTH)
    lab.run_as("root", ["sacctmgr", "-i", "add", "qos", "sg-long"])
    lab.run_as("root", ["sacctmgr", "-i", "modify", "user", "where", "name=alice", "set", "qos+=sg-long"])
    lab.run_as("root", ["scontrol", "create", "PartitionName=night", "Nodes=ALL", "State=UP"])
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    yield lab
    lab.cancel_all_jobs()
    lab.run_as("root", ["scontrol", "delete", "PartitionName=night"])
    lab.run_as("root", ["sacctmgr", "-i", "delete", "qos", "sg-long"])
    apply(lab, tmp_path / "policy.yaml", "Five each.")


def test_an_accepted_job_cannot_be_moved_or_prolonged_past_a_limit(night: Lab) -> None:
    """Change the time, QOS, partition and throttle of an array with two GPUs in total, one by one."""
    job = night.submit("alice", "--gpus=1", "--array=0-1%1", *PENDING)

    def update(*changes: str) -> bool:
        command = ["scontrol", "update", f"JobId={job}", *changes]
        return night.run_as("alice", command, check=False).returncode == 0

    def shown() -> str:
        return night.output(["scontrol", "show", "job", str(job)])

    assert update("TimeLimit=60")
    assert not update("TimeLimit=61")
    assert update("QOS=sg-long")
    assert "QOS=sg-long" in shown()
    assert not update("TresPerJob=gres:gpu:2")  # in this QOS
    assert update("QOS=normal")
    assert update("TresPerJob=gres:gpu:2")
    assert not update("QOS=sg-long")
    assert not update("Partition=night")  # where four GPUs are more than three
    assert update("TresPerJob=gres:gpu:1")
    assert update("Partition=night")
    # Both tasks count whether throttled or not, so a throttle changes nothing.
    assert update("ArrayTaskThrottle=2")
    assert "ArrayTaskThrottle=2" in shown()
    assert not update("TresPerJob=gres:gpu:2")


@pytest.fixture
def alone(lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """Return a lab with a partition of whole nodes and two without DefaultTime."""
    made = {"alone": "OverSubscribe=EXCLUSIVE", "hour": "MaxTime=60", "week": "MaxTime=7-0"}
    for name, setting in made.items():
        lab.run_as("root", ["scontrol", "create", f"PartitionName={name}", "Nodes=ALL", "State=UP", setting])
    apply(lab, tmp_path / "policy.yaml", "Five each.")  # reads the partitions' nodes
    yield lab
    lab.cancel_all_jobs()
    for name in made:
        lab.run_as("root", ["scontrol", "delete", f"PartitionName={name}"])


@pytest.mark.parametrize(
    ("asked", "wanted", "instead"),
    [
        (("--gres=gpu:1", "--time=10"), ("Partition=alone",), ("Partition=week",)),
        (("--partition=hour",), ("Partition=week",), ("Partition=week", "TimeLimit=90")),
    ],
)
def test_defaults_of_a_partition_do_not_bypass_limits(
    alone: Lab, asked: tuple[str, ...], wanted: tuple[str, ...], instead: tuple[str, ...]
) -> None:
    """Test the defaults for whole nodes with four GPUs each, and for the time limit."""
    job = alone.submit("alice", *asked, "--begin=now+1hour", "--output=/dev/null", "--wrap=true")

    def update(*changes: str) -> bool:
        command = ["scontrol", "update", f"JobId={job}", *changes]
        return alone.run_as("alice", command, check=False).returncode == 0

    assert not update(*wanted)
    assert update(*instead)


def test_a_broken_policy_is_not_installed_and_the_running_one_stays(lab: Lab, tmp_path: Path) -> None:
    script = lab.layout.etc / "job_submit.lua"
    before = script.read_bytes()
    broken = tmp_path / "policy.yaml"
    broken.write_text(POLICY.replace("for: vision", "for: vison") % "Broken.")
    refused = lab.run_as("root", ["slurm-gpu", "policy", "apply", str(broken)], check=False)
    assert refused.returncode == 2
    assert f"{broken}:9:10: for: 'vison' is not a group; did you mean vision?" in refused.stderr
    assert script.read_bytes() == before
    assert sbatch(lab, "--gpus=4", *PENDING).returncode == 1


@pytest.mark.long
def test_tries_are_forgotten_even_on_a_silent_cluster(lab: Lab) -> None:
    """Test that attempts that create no job are forgotten, even if no job changes afterwards."""

    def passes(*options: str) -> bool:
        return sbatch(lab, *options, *PENDING).returncode == 0

    for _ in range(2 * LIMIT):
        passes("--test-only")
    wait_for(lambda: passes("--test-only"), 60, "tries are forgotten", interval_s=1.0)
    lab.submit("alice", f"--array=1-{LIMIT - 1}", *PENDING)
    next_second()
    # The next try renews the job table for the last time: no job changes after it.
    wait_for(lambda: passes("--test-only"), 60, "the last of them is forgotten, too", interval_s=1.0)
    assert not passes()
    wait_for(passes, 60, "the try after the last change is forgotten", interval_s=1.0)
    assert not passes()
