"""Limits on running jobs in a partition, which Slurm enforces through the partition's QOS."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: enforce
manages: {accounts: [vision], qos: [sg-*]}
groups:
  debug: {partitions: [debug]}
  vision: {accounts: [vision]}
rules:
  - {id: in-debug, for: debug, per: PER, why: Others test., limits: {gpus_running: IN_DEBUG}}
  - {id: in-all, for: vision, per: user, why: Turns., limits: {gpus_running: 3}}
"""
JOB = ("--gpus=1", "--time=30", "--output=/dev/null", "--wrap=sleep 900")
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def bare(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    lab = lab_with(services=False)
    lab.run_as("root", ["sacctmgr", "-i", "add", "qos", "sg-debug"])
    lab.run_as("root", ["scontrol", "create", "PartitionName=debug", "Nodes=ALL", "QOS=sg-debug"])
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])
    lab.run_as("root", ["scontrol", "delete", "PartitionName=debug"])


@pytest.fixture
def lab(bare: Lab) -> Iterator[Lab]:
    yield bare
    bare.cancel_all_jobs()


def apply(lab: Lab, directory: Path, per: str, limit: int) -> str:
    path = directory / "policy.yaml"
    path.write_text(POLICY.replace("PER", per).replace("IN_DEBUG", str(limit)))
    result = lab.run_as("root", ["slurm-gpu", "policy", "apply", "--replace", str(path)])
    return result.stdout + result.stderr


def wait_for_reasons(lab: Lab, expected: dict[str, int]) -> None:
    """Wait until each reason has its expected number of jobs; running jobs have the reason None."""

    def reasons() -> Counter[str]:
        return Counter(lab.output(["squeue", "-h", "-o", "%r"]).split())

    wait_for(lambda: reasons() == expected, DEADLINE_S, f"reasons {expected}", lambda: str(reasons()), 0.5)


def test_each_user_has_a_limit_in_the_partition_and_one_in_all(lab: Lab, tmp_path: Path) -> None:
    text = apply(lab, tmp_path, "user", 1)
    assert "QOS sg-debug: MaxTRESPU=gres/gpu=1" in text
    assert "nothing enforces" not in text
    for _ in range(2):
        lab.submit("alice", "--partition=debug", *JOB)
    wait_for_reasons(lab, {"None": 1, "QOSMaxGRESPerUser": 1})
    lab.submit("bob", "--partition=debug", *JOB)
    for _ in range(3):
        lab.submit("alice", "--partition=gpu", *JOB)
    wait_for_reasons(lab, {"None": 4, "QOSMaxGRESPerUser": 1, "AssocGrpGRES": 1})


def test_a_limit_of_the_partition_s_qos_replaces_the_same_limit_of_accounts(lab: Lab, tmp_path: Path) -> None:
    text = apply(lab, tmp_path, "group", 5)
    assert (
        "jobs in QOS sg-debug: Slurm checks GrpTRES=gres/gpu=5 (rule in-debug) instead of "
        "the limits of rule in-all" in text
    )
    for _ in range(6):
        lab.submit("alice", "--partition=debug", *JOB)
    wait_for_reasons(lab, {"None": 5, "QOSGrpGRES": 1})


def test_a_job_that_exceeds_the_limit_is_refused_and_listed_by_apply(lab: Lab, tmp_path: Path) -> None:
    apply(lab, tmp_path, "user", 4)
    job = lab.submit("alice", "--partition=debug", "--gpus=2", "--begin=now+1hour", *JOB[1:])
    text = apply(lab, tmp_path, "user", 1)
    assert f"job {job} of alice requests 2 gres/gpu: QOS sg-debug, MaxTRESPU=gres/gpu=1" in text
    refused = lab.run_as("alice", ["sbatch", "--partition=debug", "--gpus=2", *JOB[1:]], check=False)
    assert refused.returncode == 1
    assert "in-debug" in refused.stderr
    answer = ["slurm-gpu", "explain", "--json", "--", "sbatch", "--partition=debug", "--gpus=2", *JOB[1:]]
    assert json.loads(lab.run_as("alice", answer, check=False).stdout)["accepted"] is False
