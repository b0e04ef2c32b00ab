"""Test that an owner's idle GPUs are lent immediately and returned within the stated time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from tests.lab.records import runs_of

OWNED, ALL = 12, 16
RETURN_WITHIN_S = 60
POLICY = f"""\
version: 1
manages: {{qos: [sg-*, normal], accounts: [vision, nlp]}}
groups: {{vision: {{accounts: [vision]}}}}
owners: {{vision: {{gpus: {OWNED}, lend_in: sg-loans, return_within: {RETURN_WITHIN_S // 60}m}}}}
"""
URGENT = """\
version: 1
manages: {qos: [urgent, normal], accounts: [vision, nlp]}
groups: {leads: {users: [alice]}}
urgent: {for: [leads], jobs_running: 1, preempts: [normal], why: "Deadlines of papers."}
"""
WORK = """#!/bin/sh
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && seconds=250 || seconds=1
srun sleep $seconds
"""


@pytest.fixture(scope="module")
def shared(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    lab = lab_with()
    policy = lab.layout.root / "lending-policy.yaml"
    policy.write_text(POLICY)
    applied = lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    assert applied.stderr == ""  # no warning that GPUs may not return in time
    assert lab.run_as("root", ["slurm-gpu", "policy", "status", str(policy)]).returncode == 0
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])
    lab.daemons["slurmdbd"].restart()  # 22.05 still finds the preemption loop of the last test


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    yield shared
    shared.cancel_all_jobs()


def submit(lab: Lab, who: str, *options: str, script: str = WORK) -> tuple[int, str]:
    """Return the job ID, and the other output of sbatch."""
    argv = ["sbatch", "--parsable", "--time=10", "--output=/dev/null", *options]
    done = lab.run_as(who, argv, stdin=script)
    return int(done.stdout), done.stderr


def runs(lab: Lab, job: int) -> list[dict[str, Any]]:
    """Return the runs of the job in slurm-gpudbd, oldest first."""
    return runs_of(lab, job)[::-1]


def ended(lab: Lab, job: int) -> list[dict[str, Any]]:
    return [run for run in runs(lab, job) if run["end_s"] is not None]


def queued(lab: Lab, job: int) -> str:
    """Return a job's state and reason, such as "PENDING QOSGrpGRES", or "" if the job has ended."""
    return lab.run_as("root", ["squeue", "-h", "-j", str(job), "-o", "%T %r"], check=False).stdout.strip()


def lending(lab: Lab) -> tuple[float, float]:
    """Return the number of GPUs that vision uses itself, and the number that it lends."""
    quota = json.loads(lab.run_as("root", ["slurm-gpu", "quota", "--json"]).stdout)
    (vision,) = quota["lending"]
    assert (vision["owner"], vision["owned"], vision["borrowed"]) == ("vision", OWNED, 0)
    return vision["own"], vision["lent"]


def test_idle_gpus_are_lent_at_once_and_return_when_their_owner_needs_them(lab: Lab) -> None:
    bob, message = submit(lab, "bob", "--gpus=8")
    assert "borrows idle GPUs of vision (QOS sg-loans)" in " ".join(message.split())
    assert "Owners can reclaim them within 1 min; the job is then requeued." in " ".join(message.split())
    wait_for(lambda: queued(lab, bob) == "RUNNING None", 30, "bob's job starts")
    # Four of its 8 GPUs have no owner.
    wait_for(lambda: lending(lab) == (0, 4), 60, "the loan is counted", lambda: str(lending(lab)), 0.5)

    wait_for(lambda: [run["lender"] for run in runs(lab, bob)] == ["vision"], 60, "the lender is recorded")

    alice, message = submit(lab, "alice", f"--gpus={OWNED}", script="#!/bin/sh\nsleep 5\n")
    assert message == ""
    wait_for(lambda: "PENDING" not in queued(lab, alice), RETURN_WITHIN_S, "alice has what vision owns")
    wait_for(lambda: ended(lab, alice), 60, "alice's run is on record", interval_s=0.5)
    wait_for(lambda: len(ended(lab, bob)) == 2, 90, "bob's job has run again", interval_s=0.5)

    (own,) = runs(lab, alice)
    first, second = runs(lab, bob)
    # The job must start by the second pass of the scheduler, which runs every 5 s.
    assert first["start_s"] - first["submit_s"] <= 10
    assert own["start_s"] - own["submit_s"] <= RETURN_WITHIN_S
    assert first["end_s"] <= own["start_s"]
    assert [run["state"] for run in (first, second, own)] == ["PREEMPTED", "COMPLETED", "COMPLETED"]
    assert [run["qos"] for run in (first, second, own)] == ["sg-loans", "sg-loans", "sg-vision"]
    assert [run["lender"] for run in (first, second, own)] == ["vision", "vision", None]
    assert (first["returned_to"], second["returned_to"]) == (str(alice), None)
    assert first["returned_in_s"] == own["start_s"] - own["eligible_s"]
    shown = lab.run_as("bob", ["slurm-gpu", "job", str(bob)]).stdout
    assert f"on loan from vision, and returned to job {alice}, which had waited" in shown


def test_idle_owned_gpus_are_used_by_others_only_on_loan(lab: Lab) -> None:
    """Slurm itself sums the running jobs of each QOS when it starts a job."""
    unowned, message = submit(lab, "bob", "--gpus=4")
    assert message == ""
    wait_for(lambda: queued(lab, unowned) == "RUNNING None", 30, "bob has GPUs without an owner")
    more, _ = submit(lab, "bob", "--gpus=4")
    wait_for(lambda: queued(lab, more) == "PENDING QOSGrpGRES", 30, "the rest is vision's")
    stolen = lab.run_as("bob", ["sbatch", "--qos=sg-vision", "--gpus=1", "--wrap=true"], check=False)
    assert "Invalid qos" in stolen.stderr
    lab.run_as("bob", ["scontrol", "update", f"jobid={more}", "qos=sg-loans"])  # bob can start it now
    wait_for(lambda: queued(lab, more) == "RUNNING None", 30, "it runs on loan")
    escape = lab.run_as("bob", ["scontrol", "update", f"jobid={more}", "qos=normal"], check=False)
    assert escape.returncode != 0  # a job cannot keep borrowed GPUs
    alice, _ = submit(lab, "alice", f"--gpus={OWNED}")
    wait_for(lambda: queued(lab, alice) == "RUNNING None", RETURN_WITHIN_S, "alice has all that vision owns")
    assert queued(lab, unowned) == "RUNNING None"


@pytest.mark.long
def test_manual_changes_of_lending_are_detected_and_everything_can_be_rolled_back(lab: Lab) -> None:
    policy = str(lab.layout.root / "lending-policy.yaml")

    def slurm_gpu(*argv: str, check: bool = True) -> str:
        return lab.run_as("root", ["slurm-gpu", "policy", *argv], check=check).stdout

    def sacctmgr(*argv: str) -> str:
        return lab.output(["sacctmgr", "-i", *argv])

    def shown() -> tuple[str, str]:
        columns = "name,flags,preempt,gracetime,grptres"
        return (
            sacctmgr("-nP", "show", "assoc", "wopl", "format=account,user,qos"),
            sacctmgr("-nP", "show", "qos", f"format={columns}"),
        )

    lent = shown()
    sacctmgr("modify", "qos", "normal", "set", "Preempt-=sg-loans")
    sacctmgr("modify", "qos", "sg-loans", "set", "GraceTime=30")
    sacctmgr("modify", "account", "where", "name=nlp", "set", "qos-=sg-loans")
    found = slurm_gpu("status", policy, check=False)
    assert "QOS normal: Preempt sg-loans (rule owners) was removed by hand" in found
    assert "QOS sg-loans: GraceTime=0 (rule owners.vision) was set to 30 by hand" in found
    assert "account nlp: QOS sg-loans (rule owners.vision) was removed by hand" in found
    slurm_gpu("apply", policy)
    assert shown() == lent
    slurm_gpu("rollback")
    slurm_gpu("rollback")
    accounts, qos = shown()
    assert "sg-" not in accounts
    by_hand = "00:00:30"  # manual settings return to their values before the apply
    assert sorted(qos.split()) == [
        "normal|||00:00:00|",
        f"sg-loans|||{by_hand}|",
        "sg-vision|||00:00:00|",
    ]
    slurm_gpu("apply", policy)
    assert shown() == lent


@pytest.mark.long
def test_a_preemption_loop_seen_only_by_slurmdbd_is_reported_with_a_remedy(lab: Lab) -> None:
    policy = lab.layout.root / "urgent-after-lending.yaml"
    policy.write_text(URGENT)

    def apply(path: object) -> str:
        applied = lab.run_as("root", ["slurm-gpu", "policy", "apply", str(path)], check=False)
        assert (applied.returncode == 0) == (applied.stderr == "")
        return applied.stderr

    assert apply(policy) == ""  # urgent preempts normal, which no longer preempts sg-loans
    assert apply(lab.layout.policy_file) == ""
    if message := apply(policy):  # on Slurm 22.05
        assert "QOS Preemption loop detected" in message
        assert "(systemctl restart slurmdbd) and run the same command again" in message
        assert "does not answer" not in message
        lab.daemons["slurmdbd"].restart()
        assert apply(policy) == ""
    shown = lab.output(["sacctmgr", "-nP", "show", "qos", "format=name,preempt"])
    assert "urgent|normal" in shown.split()
