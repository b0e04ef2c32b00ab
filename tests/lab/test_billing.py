"""Billing units that job_submit.lua computes for a request, compared with Slurm's own for the same job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: advise
groups: {everyone: {}}
rules: [{id: cost, for: everyone, per: job, why: Costs., limits: {billing_hours: 0}}]
"""
WEIGHTS = ("CPU=1.0,Mem=0.25G,GRES/gpu=16", "CPU=0.5,Mem=100K,GRES/gpu=2.5,GRES/gpu:a100=8", "")
REQUESTS = (
    ("--ntasks=3", "--mem=5G"),
    ("--gpus=2", "--cpus-per-task=5", "--mem=1000M"),
    ("--nodes=2", "--gpus-per-node=a100:3", "--ntasks-per-node=2", "--mem-per-cpu=3G"),
    ("--gres=gpu:1", "--mem-per-gpu=20G"),
    ("--gres=shard:3", "--mem=2G"),
)


@pytest.fixture(scope="module")
def lab(lab_with: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = lab_with(services=False, native_limits=False)
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    lab.run_as("root", ["scontrol", "create", "PartitionName=billed", "Nodes=ALL"])
    yield lab
    lab.cancel_all_jobs()
    lab.run_as("root", ["scontrol", "delete", "PartitionName=billed"])
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_billing_of_a_request_is_slurm_s(lab: Lab, weights: str) -> None:
    setting = ["PartitionName=billed", f"TRESBillingWeights={weights}"]
    lab.run_as("root", ["scontrol", "update", *setting])
    found = {}
    for request in REQUESTS:
        fixed = ("--partition=billed", "--time=60", "--begin=now+1hour", "--output=/dev/null", "--wrap=true")
        result = lab.run_as("alice", ["sbatch", *fixed, *request])
        computed = re.search(r"requested (\d+)", result.stderr)
        job = result.stdout.split()[-1]
        own = re.search(r"\bbilling=(\d+)", lab.output(["scontrol", "show", "job", job]))
        found[request] = [one and int(one[1]) for one in (computed, own)]
    assert all(computed == own for computed, own in found.values()), found
