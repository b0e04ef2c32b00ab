"""Test limits that Slurm does not have, on a real Slurm without native limits."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

from .seconds import leave_no_job, next_second

LATER = ("--begin=now+1hour", "--output=/dev/null", "--wrap=true")


@pytest.fixture(scope="module")
def bare(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    """Start only Slurm with our job_submit.lua, without native limits."""
    lab = lab_with(services=False, native_limits=False)
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture
def lab(bare: Lab) -> Iterator[Lab]:
    yield bare
    leave_no_job(bare)


def apply(lab: Lab, tmp_path: Path, rules: str, more: str = "") -> None:
    """Apply a policy with these rules and the groups of the lab."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nmode: enforce\n"
        "groups: {all: {}, alice: {users: [alice]}, course: {unix_groups: [undergrad]}}\n"
        f"{more}rules:\n{rules}"
    )
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])


def sbatch(lab: Lab, *arguments: str, user: str = "alice") -> subprocess.CompletedProcess[str]:
    return lab.run_as(user, ["sbatch", *arguments, *LATER], check=False)


def accept(lab: Lab, *arguments: str, user: str = "alice") -> None:
    """Submit a job that must be accepted."""
    answer = sbatch(lab, *arguments, user=user)
    assert answer.returncode == 0, answer.stderr


def refuse(lab: Lab, *arguments: str, user: str = "alice") -> str:
    """Submit a job that a rule must refuse; return the message of sbatch."""
    answer = sbatch(lab, *arguments, user=user)
    assert answer.returncode != 0, answer.stdout
    assert "Refused by rule" in answer.stderr
    return answer.stderr


def test_gpus_that_run_and_gpus_that_wait_make_one_sum(lab: Lab, tmp_path: Path) -> None:
    apply(lab, tmp_path, "  - {id: share, for: all, per: user, why: W., limits: {gpus_total: 6}}\n")
    lab.submit("alice", "--gpus=4", "--time=10", "--output=/dev/null", "--wrap=sleep 60")
    refuse(lab, "--gpus=3")
    accept(lab, "--gpus=2")
    refuse(lab, "--gpus=1")


def test_a_limit_of_one_type_applies_to_untyped_requests(lab: Lab, tmp_path: Path) -> None:
    apply(lab, tmp_path, "  - {id: type, for: all, per: user, why: W., limits: {gpus_total: {a100: 2}}}\n")
    refuse(lab, "--gpus=3")
    refuse(lab, "--gpus=a100:3")
    accept(lab, "--gpus=1")
    refuse(lab, "--gres=gpu:a100:2")


def test_gpus_and_parts_of_gpus_make_one_sum(lab: Lab, tmp_path: Path) -> None:
    apply(lab, tmp_path, "  - {id: parts, for: all, per: user, why: W., limits: {gpus_total: 1.5}}\n")
    accept(lab, "--gpus=1")
    refuse(lab, "--gres=shard:3")
    accept(lab, "--gres=shard:2")


def test_cpus_and_memory_are_limited_by_the_gpu(lab: Lab, tmp_path: Path) -> None:
    apply(
        lab,
        tmp_path,
        "  - {id: ratio, for: all, per: job, why: W., limits: {cpus_per_gpu: 8, memory_per_gpu: 24G}}\n",
    )
    accept(lab, "--gpus=2", "--cpus-per-task=16", "--mem=48G")
    assert "CPUs per GPU: limit 8, requested 17" in sbatch(lab, "--gpus=1", "--cpus-per-task=17").stderr
    assert "memory per GPU: limit 24G, requested 25G" in sbatch(lab, "--gpus=2", "--mem=50G").stderr
    refuse(lab, "--gpus=1", "--mem-per-cpu=4G", "--cpus-per-task=8")
    refuse(lab, "--gpus=1", "--mem=0")
    accept(lab, "--cpus-per-task=20", "--mem=50G")  # without GPUs


def test_kind_size_and_hour_of_a_job_matter(lab: Lab, tmp_path: Path) -> None:
    today = dt.datetime.now(tz=dt.UTC)
    other_days = ",".join(
        day
        for number, day in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"))
        if number not in (today.weekday(), (today.weekday() + 1) % 7)
    )
    apply(
        lab,
        tmp_path,
        "  - {id: shell, for: all, per: job, kind: interactive, why: W., limits: {gpus: 1}}\n"
        "  - {id: scale, for: all, per: job, why: W., limits: {walltime: {1: 2h, 4: 1h}}}\n"
        f'  - {{id: other, for: all, per: job, when: {{days: "{other_days}"}}, '
        "why: W., limits: {gpus: 0}}\n",
    )
    accept(lab, "--gpus=2", "--time=2:00:00")
    assert "limit 01:00:00" in sbatch(lab, "--gpus=4", "--time=2:00:00").stderr
    accept(lab, "--time=9:00:00")
    shell = lab.run_as("alice", ["salloc", "--gpus=2", "--time=5", "true"], check=False)
    assert "Refused by rule shell" in shell.stderr
    assert lab.run_as("alice", ["salloc", "--gpus=1", "--time=5", "true"], check=False).returncode == 0


def test_one_person_is_one_person_in_every_account(lab: Lab, tmp_path: Path) -> None:
    apply(
        lab,
        tmp_path,
        "  - {id: person, for: alice, per: user, why: W., limits: {gpus_total: 3}}\n"
        "  - {id: course, for: course, per: group, why: W., limits: {gpus_total: 2}}\n",
    )
    lab.run_as("root", ["sacctmgr", "-i", "add", "user", "alice", "account=nlp"])
    try:
        accept(lab, "--gpus=2", "--account=vision")
        refuse(lab, "--gpus=2", "--account=nlp")
        accept(lab, "--gpus=1", "--account=nlp")
        refuse(lab, "--gpus=3", user="bob")  # of the UNIX group
    finally:
        next_second()
        lab.cancel_all_jobs()
        lab.run_as("root", ["sacctmgr", "-i", "delete", "user", "alice", "account=nlp"], check=False)


def test_a_refusal_contains_numbers_and_an_acceptable_command(lab: Lab, tmp_path: Path) -> None:
    apply(
        lab,
        tmp_path,
        "  - {id: ratio, for: all, per: job, why: W., limits: {gpus: 3, cpus_per_gpu: 8, walltime: 2h}}\n",
        more="bundles: {train: {gpus: 1, cpus: 6, memory: 24G, mode: enforce}}\n",
    )
    refused = sbatch(lab, "--gpus=4", "--cpus-per-task=40", "--mem=200G", "--time=3:00:00").stderr
    assert "GPUs in one job: limit 3, requested 4." in refused
    assert "Refused by bundle train" in refused
    advised = re.search(r"(--gpus=3 .*) \.\.\.", refused)
    assert advised is not None, refused
    assert advised[1].split() == ["--gpus=3", "--cpus-per-task=18", "--mem=72G", "--time=02:00:00"]
    accept(lab, *advised[1].split())


def test_a_job_is_filled_in_warned_and_explained(lab: Lab, tmp_path: Path) -> None:
    apply(
        lab,
        tmp_path,
        "  - {id: soft, for: all, per: job, mode: advise, why: Others., limits: {gpus: 2}}\n",
        more="bundles: {train: {gpus: 1, cpus: 6, memory: 24G, mode: fit}}\n",
    )
    filled = lab.submit("alice", "--gpus=1", "--time=10", "--output=/dev/null", "--wrap=sleep 60")
    warned = sbatch(lab, "--gpus=3", "--cpus-per-task=20")
    assert warned.returncode == 0
    assert "Violates rule soft: Others." in warned.stderr
    assert "CPUs with 3 GPUs: limit 18, requested 20." in warned.stderr
    explain = ["slurm-gpu", "explain", "--", "sbatch", "--gpus=3", "--cpus-per-task=20", "--wrap=true"]
    explained = lab.run_as("alice", explain, check=False)
    assert explained.returncode == 0
    assert "CPUs with 3 GPUs: limit 18, requested 20." in explained.stdout

    def shown() -> str:
        return lab.output(["scontrol", "show", "job", str(filled)])

    wait_for(lambda: "TRES=cpu=6,mem=24G,node=1" in shown(), 60, "the job has what was filled in", shown)


def test_limits_apply_to_updates_and_het_jobs(lab: Lab, tmp_path: Path) -> None:
    apply(
        lab,
        tmp_path,
        "  - {id: size, for: all, per: job, why: W., limits: {gpus: 2, cpus: 8, memory: 40G}}\n"
        "  - {id: sum, for: all, per: user, why: W., limits: {gpus_total: 3}}\n",
    )
    job = lab.submit("alice", "--gres=gpu:1", "--mem=8G", "--time=10", *LATER)

    def update(*changes: str) -> int:
        return lab.run_as("alice", ["scontrol", "update", f"JobId={job}", *changes], check=False).returncode

    assert update("TresPerNode=gres:gpu:2", "NumNodes=2") != 0
    assert update("MinMemoryNode=50000") != 0
    assert update("NumCPUs=16") != 0
    assert update("MinMemoryNode=20000", "NumCPUs=8") == 0
    het = lab.run_as(
        "alice", ["sbatch", "--gpus=1", "--begin=now+1hour", ":", "--gpus=3", "--wrap=true"], check=False
    )
    assert "Refused by rule" in het.stderr
