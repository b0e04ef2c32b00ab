"""Test that no combination of fields set by a client of libslurm gets more GPUs than the policy allows."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.configuration import slurm_version
from lab.polling import wait_for

from .seconds import leave_no_job

LIMIT = 2
POLICY = f"""\
version: 1
mode: enforce
groups: {{everyone: {{}}}}
rules:
  - {{id: size, for: everyone, per: job, why: Turns., limits: {{gpus: {LIMIT}}}}}
"""
GPUS = (
    "tres_per_node=gres:gpu:2",
    "tres_per_node=gres:gpu:1",
    "tres_per_job=gres:gpu:2",
    "tres_per_task=gres:gpu:1",
    "tres_per_socket=gres:gpu:1",
    "tres_per_socket=gres:gpu:1 sockets_per_node=1",
    "ntasks_per_tres=1",
)
# Fields that can give a job more nodes, tasks or sockets.
OTHERS = (
    "min_nodes=1",
    "min_nodes=2",
    "max_nodes=1",
    "max_nodes=3",
    "req_nodes=n[1-3]",
    "req_nodes=n1,n2",
    "exc_nodes=n1",
    "features=[zone1*1&zone2*2]",
    "features=zone1*2",
    "features=zone1|zone2",
    "num_tasks=3",
    "num_tasks=64",
    "cpus_per_task=20",
    "ntasks_per_node=1",
    "ntasks_per_node=2",
    "ntasks_per_socket=1",
    "ntasks_per_core=1",
    "ntasks_per_board=1",
    "sockets_per_node=2",
    "cores_per_socket=2",
    "threads_per_core=1",
    "boards_per_node=1",
    "min_cpus=3",
    "min_cpus=64",
    "max_cpus=64",
    "pn_min_cpus=16",
    "pn_min_memory=50000",
    "cpus_per_tres=gres:gpu:20",
    "mem_per_tres=gres:gpu:60000",
    "core_spec=2",
    "shared=0",
    "overcommit=1",
    "contiguous=1",
    "bitflags=0x100",  # SPREAD_JOB
    "plane_size=1",
)
DEADLINE_S = 300


@pytest.fixture(scope="module")
def lab(lab_with: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start only Slurm with our job_submit.lua, without native limits."""
    lab = lab_with(services=False, native_limits=False)
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    yield lab
    leave_no_job(lab)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture(scope="module")
def client(lab: Lab) -> Path:
    program = lab.layout.bin / "submit_fields"
    source = Path(__file__).with_name("submit_fields.c")
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", program, source, "-lslurm"], check=True)
    return program


def combinations(n_pairs: int) -> list[str]:
    """Return each form of GPU request alone and with each other field, and some with two other fields."""
    alone = [*GPUS, *(f"{gpus} {other}" for gpus in GPUS for other in OTHERS)]
    pairs = [
        f"{gpus} {one} {other}"
        for gpus in GPUS
        for one, other in itertools.combinations(OTHERS, 2)
        if one.partition("=")[0] != other.partition("=")[0]
    ]
    return alone + random.Random(1).sample(pairs, n_pairs)


def allocated_gpus(lab: Lab, client: Path, lines: Sequence[str]) -> dict[str, int]:
    """Submit a job for each line; return the GPUs of those that ran."""
    answers = lab.run_as("alice", [str(client)], stdin="\n".join(lines) + "\n", timeout_s=DEADLINE_S).stdout
    jobs = {}
    for line, answer in zip(lines, answers.splitlines(), strict=True):
        job, _, reason = answer.partition(" ")
        print(f"{line}: {reason or job}")
        if job != "0":
            jobs[job] = line
    waiting = ["squeue", "--noheader", "--format=%i %r"]

    def settled() -> bool:
        """Return whether no job is running, and no pending job may still start."""
        reasons = [line.partition(" ")[2] for line in lab.output(waiting).splitlines()]
        return not {"None", "Priority", "Resources"}.intersection(reasons)

    wait_for(settled, DEADLINE_S, "jobs end", lambda: lab.output(waiting), 1)
    found = {}
    fields = ["sacct", "-X", "-n", "-P", "--user=alice", "--name=fields", "--format=JobID,AllocTRES"]
    for row in lab.output(fields).splitlines():
        job, _, tres = row.partition("|")
        if job in jobs and (match := re.search(r"gres/gpu=(\d+)", tres)):
            found[jobs[job]] = int(match[1])
    return found


def over_limit(lab: Lab, client: Path, lines: Sequence[str]) -> list[str]:
    """Return the lines whose jobs got more GPUs than allowed."""
    found = allocated_gpus(lab, client, lines)
    assert len(found) > 10
    return [f"{line}: {gpus} GPUs" for line, gpus in found.items() if gpus > LIMIT]


def is_counted(line: str) -> bool:
    """Return whether the number of GPUs is independent of the number of sockets."""
    return "per_socket" not in line


def ends_slurmctld(line: str) -> bool:
    """Return whether slurmctld 24.11.5 crashes, even without job_submit.lua (--gpus=2 --spread-job)."""
    return slurm_version() == (24, 11) and "bitflags=0x100" in line


@pytest.mark.long
def test_no_combination_of_fields_gets_more_gpus_than_allowed(lab: Lab, client: Path) -> None:
    lines = [line for line in combinations(300) if is_counted(line) and not ends_slurmctld(line)]
    over = over_limit(lab, client, lines)
    assert not over, "\n".join(over)


@pytest.mark.long
# Whether a job gets more sockets than counted depends on the nodes that are free.
@pytest.mark.xfail(strict=False, reason="sockets that Slurm chooses by CPUs are not counted")
def test_nor_do_fields_that_leave_sockets_to_slurm(lab: Lab, client: Path) -> None:
    over = over_limit(lab, client, [line for line in combinations(0) if not is_counted(line)])
    assert not over, "\n".join(over)
