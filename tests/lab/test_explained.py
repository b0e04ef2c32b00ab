"""Test that `slurm-gpu explain` predicts the outcome of a submission with the policy's exact messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: enforce
contact: gpu-help@lab.example
manages: {accounts: [vision, nlp]}
groups:
  everyone: {}
  vision: {accounts: [vision]}
bundles:
  train: {gpus: 1, cpus: 8, memory: 32G, mode: advise}
  prep: {gpus: 0, cpus: 16, memory: 64G, mode: enforce}
rules:
  - {id: size, for: everyone, per: job, why: "Others get a turn.",
     limits: {gpus: 16, nodes: 4, walltime: {1: 2h, 4: 1h}, array_tasks: 5, gpu_types: [a100]}}
  - {id: share, for: vision, per: user, why: "One queue for all.", mode: advise, limits: {gpus_total: 2}}
  - {id: shells, for: everyone, per: job, kind: interactive, why: "A shell is for tries.", limits: {gpus: 1}}
"""
CONFIGURED = (
    "Licenses=matlab:2",
    "PartitionName=short Nodes=n[1-2] MaxTime=30 State=UP",
    "PartitionName=ops Nodes=n1 AllowGroups=gpuops State=UP",
    "PartitionName=nlp Nodes=n1 AllowAccounts=nlp State=UP",
    "PartitionName=one Nodes=n[1-4] MaxNodes=1 State=UP",
    "PartitionName=drained Nodes=n1 State=DRAIN",
    "PartitionName=down Nodes=n1 State=DOWN",
)
BY_POLICY = (
    "--gpus=17",
    "--gpus=4 --time=90",
    "--gres=gpu:2 --nodes=1 --ntasks=2 --time=3:00:00",
    "--array=0-9",
    "--nodes=5",
    "--gpus=v100:1",
    "--cpus-per-task=20",
    "--gres=shard:5",
    "--exclusive --time=90",
)
ACCEPTED = (
    "--gpus=1",
    "--gpus=3 --gpus-per-node=3",
    "--gpus=2 --cpus-per-task=20",
    "--gres=shard:4 --time=90",
    "--partition=short --time=20 --gpus=1",
    "--partition=short,gpu --time=60",
    "--constraint=zone1 --nodes=2",
    "--constraint=zone1|zone2 --gpus-per-task=1 --ntasks=2",
    "--array=0-4%2 --gpus=1",
    "--gpus=4 --nodes=2-3",
    "--gpus=1 --licenses=matlab:2",
)
BY_SLURM = (
    "--partition=nowhere",
    "--partition=drained",
    "--account=vision --gpus=1",
    "--qos=urgent",
    "--constraint=zone3",
    "--constraint=zone1 --nodes=3",
    "--gres=gpu:5 --time=30",
    "--gres=tape:1",
    "--gpus=2 --mem=300G",
    "--partition=one --gpus=8 --gpus-per-node=4 --nodes=1",
    "--gpus=5 --gpus-per-node=2",
    "--mem=1G --mem-per-cpu=1G",
    "--nodelist=n9",
    "--licenses=ansys",
    "--licenses=matlab:3",
)
BY_PARTITION = {
    "--partition=short --time=45": "PartitionTimeLimit",
    "--partition=nlp": "not permitted to use this partition|PartitionConfig",
    "--partition=one --nodes=2": "PartitionNodeLimit",
    "--partition=down": "PartitionDown",
}
"""Options that Slurm refuses or queues depending on EnforcePartLimits, and a pattern of the reason."""


COMMAND = ("sbatch", "--output=/dev/null", "--wrap=true", "--time=20")


@dataclass(frozen=True)
class Fate:
    """The outcome of a submission."""

    policy_says: tuple[str, ...]
    accepted: bool
    by_slurm: bool = False
    """Whether Slurm, not the policy, refuses the job."""


@pytest.fixture(scope="module")
def bring_up(lab_with: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lab]:
    """Return a function that starts a lab with an EnforcePartLimits and partitions that exclude jobs."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)

    def up(enforced: str) -> Lab:
        lab = lab_with(services=False, extra_slurm_conf=(f"EnforcePartLimits={enforced}", *CONFIGURED))
        lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
        return lab

    return up


@pytest.fixture
def lab(bring_up: Callable[[str], Lab]) -> Lab:
    return bring_up("NO")


def explained(lab: Lab, user: str, options: str) -> tuple[Fate, list[str]]:
    """Return the predicted outcome and the notes."""
    argv = ["slurm-gpu", "explain", "--json", "--", *COMMAND, *options.split()]
    answer = lab.run_as(user, argv, check=False)
    shown = json.loads(answer.stdout)
    assert answer.returncode == (0 if shown["accepted"] else 1)
    by_policy = any(line.startswith("Refused") for line in shown["messages"])
    fate = Fate(tuple(shown["messages"]), shown["accepted"], bool(shown["slurm"]) and not by_policy)
    # No slurm-gpuctld runs here.
    return fate, [note for note in shown["notes"] if "jobs were counted in Slurm's queue" not in note]


def submitted(lab: Lab, user: str, options: str) -> tuple[Fate, int]:
    """Return the outcome and the job ID, 0 without a job."""
    result = lab.run_as(user, [*COMMAND, *options.split()], check=False)
    prefix = "sbatch: " if result.returncode == 0 else "sbatch: error: "
    lines = [line.removeprefix(prefix) for line in result.stderr.splitlines()]
    starts = ("Refused", "Violates")
    first = next((at for at, line in enumerate(lines) if line.startswith(starts)), len(lines))
    last = next((at for at, line in enumerate(lines) if line.startswith("  Questions")), -1)
    refused_by_policy = any(line.startswith("Refused") for line in lines)
    fate = Fate(
        tuple(lines[first : last + 1]),
        result.returncode == 0,
        result.returncode != 0 and not refused_by_policy,
    )
    return fate, int(result.stdout.split()[-1]) if result.returncode == 0 else 0


def state(lab: Lab, job: int) -> str:
    """Return the state and reason, such as "PENDING PartitionDown".

    For an array, return those of the tasks that are not split off.
    """
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r"]
    return lab.output(argv).partition("\n")[0]


@pytest.mark.parametrize("options", [*BY_POLICY, *BY_SLURM])
def test_explain_predicts_a_refusal_and_its_source(lab: Lab, options: str) -> None:
    predicted, _ = explained(lab, "bob", options)
    assert not predicted.accepted
    assert predicted.by_slurm is (options in BY_SLURM)
    assert submitted(lab, "bob", options) == (predicted, 0)


def test_explain_predicts_the_access_to_a_partition_of_groups(lab: Lab) -> None:
    """Slurm 22.05 always refuses users outside the groups, later versions only with EnforcePartLimits."""
    predicted, _ = explained(lab, "bob", "--partition=ops")
    really, _ = submitted(lab, "bob", "--partition=ops")
    assert really == predicted
    lab.cancel_all_jobs()


def test_an_explained_job_is_accepted_with_the_same_message_and_starts(lab: Lab) -> None:
    jobs = {}
    for user, options in [*(("bob", options) for options in ACCEPTED), ("alice", "--gpus=3")]:
        predicted, notes = explained(lab, user, options)
        assert (predicted.accepted, notes) == (True, []), options
        really, jobs[options] = submitted(lab, user, options)
        assert really == predicted, options
    for options, job in jobs.items():
        wait_for(
            lambda job=job: not state(lab, job).startswith("PENDING"),  # type: ignore[misc]
            60,
            f"{options} starts",
            lambda job=job: state(lab, job),  # type: ignore[misc]
            0.5,
        )


def test_explain_notes_jobs_that_a_partition_never_starts(lab: Lab) -> None:
    for options, reason in BY_PARTITION.items():
        predicted, (note,) = explained(lab, "alice", options)
        assert predicted.accepted
        assert "would accept the job, but would currently let it wait indefinitely" in note
        really, job = submitted(lab, "alice", options)
        assert really == predicted
        wait_for(
            lambda job=job, reason=reason: re.search(reason, state(lab, job)) is not None,  # type: ignore[misc]
            30,
            f"{options} waits",
            lambda job=job: state(lab, job),  # type: ignore[misc]
        )
    lab.cancel_all_jobs()


def test_explain_predicts_refusals_of_enforced_partition_limits(bring_up: Callable[[str], Lab]) -> None:
    lab = bring_up("ALL")
    for options in BY_PARTITION:
        predicted, notes = explained(lab, "alice", options)
        really, job = submitted(lab, "alice", options)
        assert really == predicted, options
        # No setting makes a DOWN partition an error.
        assert (really.by_slurm, len(notes)) == ((False, 1) if job else (True, 0)), options
    lab.cancel_all_jobs()
