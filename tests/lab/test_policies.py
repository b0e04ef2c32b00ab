"""Test each policy in docs/policies on a real Slurm: submissions get the documented answers."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab
from lab.options import GpuModel, NodeGpus
from lab.people import PEOPLE
from lab.polling import wait_for
from tests.docs.submissions import ACCEPTED, JOB_SCRIPT, POLICIES, Submission, named, submissions

from .seconds import next_second
from .test_snapshot_limits import DEADLINE_S, settle

pytestmark = pytest.mark.long

USERS = ",".join(one.name for one in PEOPLE)
# The lines of sbatch, srun and salloc that do not come from the script.
OF_SLURM = re.compile(
    r"Batch job submission failed|Job submit/allocate failed|Unable to allocate|Granted job|Pending job"
    r"|Waiting for resource|Relinquishing|Nodes |job \d+ "
)


@pytest.fixture(scope="module")
def mixed(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    """Start a cluster with two types of GPUs, slurm-gpuctld and Slurm's own limits."""
    lab = lab_with(services=False, controller=True, gpus={"n4": NodeGpus(model=GpuModel.H100)})
    for one in PEOPLE:
        lab.run_as(one.name, ["tee", "job.sh"], stdin=JOB_SCRIPT)
    yield lab
    apply(lab, lab.layout.policy_file.read_text())


@pytest.fixture
def lab(mixed: Lab) -> Iterator[Lab]:
    yield mixed
    mixed.cancel_all_jobs()
    settle(mixed)


def create_names(lab: Lab, policy: str) -> None:
    """Create the accounts, QOS and partitions that the policy names; existing ones are kept."""

    def as_root(*argv: str) -> None:
        lab.run_as("root", argv, check=False)

    for account in named(policy, "accounts"):
        as_root("sacctmgr", "-i", "add", "account", account)
        as_root("sacctmgr", "-i", "add", "user", USERS, f"account={account}")
    for qos in named(policy, "qos") - {"normal"}:
        as_root("sacctmgr", "-i", "add", "qos", qos)
        as_root("sacctmgr", "-i", "modify", "user", "where", f"name={USERS}", "set", f"qos+={qos}")
    for name in named(policy, "partitions") - {"gpu"}:
        setting = ("Nodes=ALL", "State=UP", "DefaultTime=60")
        as_root("scontrol", "create", f"PartitionName={name}", *setting)


def apply(lab: Lab, policy: str) -> None:
    """Apply the policy, and wait until slurm-gpuctld uses it."""
    path = lab.layout.root / "published-policy.yaml"
    path.write_text(policy)
    command = ["slurm-gpu", "policy", "apply", str(path)]
    if lab.run_as("root", command, check=False).returncode != 0:
        lab.daemons["slurmdbd"].restart()  # 22.05 finds a preemption loop with the previous policy
        lab.run_as("root", command)
    settle(lab)
    if "_hours: {" in policy:
        snapshot = lab.layout.controller_run / "snapshot.txt"
        wait_for(lambda: "\nhours " in snapshot.read_text(), DEADLINE_S, "used hours are known")


def submit(lab: Lab, one: Submission, jobs: list[int]) -> str:
    """Return the answer without prefixes, with job IDs as positions in `jobs`; append an accepted job."""
    argv = shlex.split(one.command)
    if argv[0] == "salloc":
        argv.insert(1, "--no-shell")
    result = lab.run_as(one.user, argv, check=False)
    lines = [without_prefix(line) for line in result.stderr.splitlines()]
    lines = [line for line in lines if not OF_SLURM.match(line)]
    text = re.sub(r" \(\d+ just submitted\)", "", "\n".join(lines))
    text = re.sub(r"scancel (\d+)", lambda match: f"scancel {jobs.index(int(match[1])) + 1}", text)
    if result.returncode != 0:
        return text
    found = re.search(r"job (?:allocation )?(\d+)", result.stdout + result.stderr)
    assert found is not None, result
    jobs.append(int(found[1]))
    next_second()
    # Slurm refreshes the script's job table only after a job has changed.
    lab.run_as("root", ["scontrol", "update", f"JobId={jobs[-1]}", "Comment=seen"])
    settle(lab)
    return "\n".join([text, ACCEPTED]) if text else ACCEPTED


def without_prefix(line: str) -> str:
    return re.sub(r"^(?:sbatch|srun|salloc): (?:error: )?", "", line)


@pytest.mark.parametrize("name", POLICIES)
def test_each_submission_gets_its_documented_answer(lab: Lab, name: str) -> None:
    """Omit the first submission with a given time and all later ones; let all periods end in 2099."""
    policy = re.sub(r"until: [\d-]+", "until: 2099-12-31", POLICIES[name].read_text())
    create_names(lab, policy)
    apply(lab, policy)
    jobs: list[int] = []
    for one in itertools.takewhile(lambda one: one.at is None, submissions(POLICIES[name])):
        expected = "\n".join(map(without_prefix, one.answer.splitlines()))
        assert submit(lab, one, jobs) == expected, one.command
