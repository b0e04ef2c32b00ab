"""Test that an urgent job starts before older ones, by preemption if necessary, with one audit event."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.client.database_client import AuditEvent, DatabaseClient
from slurm_gpu.config.site import load_config
from slurm_gpu.controller.urgent_audit import ACT
from slurm_gpu.policy.lua.urgent import POINTS
from tests.lab.seconds import next_second

POLICY = """\
version: 1
contact: gpu-help@lab.example
manages: {qos: [urgent, normal], accounts: [vision, nlp]}
groups: {leads: {users: [alice]}}
urgent: {for: [leads], jobs_running: 1, preempts: [normal], why: "Deadlines of papers."}
"""
# The deadline for asynchronous work of Slurm and the daemons on a busy host.
DEADLINE_S = 120.0
ALL = ("--nodes=4", "--gpus-per-node=4")
WHY = "CVPR is on Friday"


@pytest.fixture(scope="module")
def shared(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    lab = lab_with()
    policy = lab.layout.root / "urgent-policy.yaml"
    policy.write_text(POLICY)
    applied = lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    assert applied.stderr == ""  # no warning of missing settings
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    yield shared
    for daemon in shared.daemons.values():
        daemon.start()
    shared.cancel_all_jobs()


def submit(lab: Lab, who: str, *options: str, seconds: int = 300) -> int:
    argv = ["sbatch", "--parsable", "--time=10", "--output=/dev/null", *options]
    return int(lab.run_as(who, argv, stdin=f"#!/bin/sh\nexec sleep {seconds}\n").stdout)


def urgent(lab: Lab, *options: str) -> int:
    return submit(lab, "alice", "--qos=urgent", f"--comment={WHY}", *options)


def state(lab: Lab, job: int) -> str:
    """Return the state and reason, such as "PENDING QOSGrpJobsLimit"."""
    return lab.run_as("root", ["squeue", "-h", "-j", str(job), "-o", "%T %r"], check=False).stdout.strip()


def wait_state(lab: Lab, job: int, wanted: str) -> None:
    wait_for(lambda: state(lab, job) == wanted, DEADLINE_S, f"{job} is {wanted}", lambda: queue(lab), 0.5)


def priority(lab: Lab, job: int) -> int:
    return int(lab.output(["squeue", "-h", "-j", str(job), "-o", "%Q"]))


def explained(lab: Lab, job: int) -> str:
    return lab.run_as("alice", ["slurm-gpu", "explain", str(job)]).stdout


def queue(lab: Lab) -> str:
    return lab.output(["squeue", "-o", "%i %T %r %Q %q"])


def audit_events(lab: Lab, job: int) -> list[AuditEvent]:
    with DatabaseClient(load_config(lab.layout.site_file)) as database:
        return [act for act in database.acts(1000) if act.action == ACT and act.evidence["job_id"] == job]


def test_an_urgent_job_starts_first_and_a_forbidden_one_is_refused_with_the_permitted_users(lab: Lab) -> None:
    running = submit(lab, "bob", *ALL)
    wait_state(lab, running, "RUNNING None")
    older = [submit(lab, "bob", "--gpus=1") for _ in range(3)]
    may_not = lab.run_as("bob", ["sbatch", "--qos=urgent", f"--comment={WHY}", "--wrap=true"], check=False)
    assert may_not.returncode != 0
    assert "Refused by rule urgent: Deadlines of papers." in may_not.stderr
    assert "Urgent jobs (--qos=urgent) are allowed for: alice. At most 1 may run at once" in may_not.stderr
    no_reason = lab.run_as("alice", ["sbatch", "--qos=urgent", "--wrap=true"], check=False)
    assert "add --comment='the reason'" in no_reason.stderr

    first = urgent(lab, *ALL)
    second = urgent(lab, "--gpus=1")
    wait_state(lab, first, "RUNNING None")
    wait_state(lab, second, "PENDING QOSGrpJobsLimit")
    assert {state(lab, job).partition(" ")[0] for job in (running, *older)} == {"PENDING"}
    assert priority(lab, second) - max(priority(lab, job) for job in older) > POINTS / 2


@pytest.mark.long
def test_urgent_jobs_are_audited_once_despite_a_kill_of_slurm_gpuctld(lab: Lab) -> None:
    running = submit(lab, "bob", *ALL)
    wait_state(lab, running, "RUNNING None")
    first = urgent(lab, *ALL)
    second = urgent(lab, "--gpus=1")
    wait_state(lab, first, "RUNNING None")
    # The first job has no audit event yet; the restarted daemon finds the job in accounting.
    lab.daemons["slurm-gpuctld"].kill9()
    lab.daemons["slurm-gpuctld"].start()
    wait_for(lambda: f"It is urgent: {WHY}" in explained(lab, second), DEADLINE_S, "explain has the reason")
    wait_for(
        lambda: audit_events(lab, first),
        DEADLINE_S,
        "the audit has it",
        lambda: str(audit_events(lab, first)),
        0.5,
    )
    (act,) = audit_events(lab, first)
    assert (act.subject, act.why) == (f"job {first} of alice", WHY)
    assert [one["job_id"] for one in act.evidence["preempted"]] == [running]
    lab.run_as("alice", ["scancel", str(first)])
    wait_state(lab, second, "RUNNING None")
    wait_for(
        lambda: audit_events(lab, second), DEADLINE_S, "the audit has the second", lambda: queue(lab), 0.5
    )
    (act,) = audit_events(lab, second)
    assert act.evidence["preempted"] == []
    assert len(audit_events(lab, first)) == 1
    shown = lab.run_as("root", ["slurm-gpu", "audit", "--action", "urgent"]).stdout
    assert shown.index(f"job {first} of alice") < shown.index(f"job {second} of alice")


@pytest.mark.long
def test_without_preemption_an_urgent_job_starts_next_and_overtaken_jobs_are_audited(lab: Lab) -> None:
    policy = lab.layout.root / "patient-policy.yaml"
    policy.write_text(POLICY.replace(" preempts: [normal],", ""))
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    running = submit(lab, "bob", *ALL)
    wait_state(lab, running, "RUNNING None")
    older = [submit(lab, "bob", *ALL) for _ in range(3)]
    wait_for(lambda: priority(lab, older[-1]) > 0, DEADLINE_S, "they have a priority", lambda: queue(lab))
    next_second()
    job = urgent(lab, *ALL)
    # slurm-gpuctld can determine the overtaken jobs only if it has seen the urgent job pending.
    seen = lab.layout.controller_run / "snapshot.txt"
    wait_for(lambda: "use user:alice" in seen.read_text(), DEADLINE_S, "it is seen", lambda: queue(lab), 0.5)
    assert state(lab, running) == "RUNNING None"
    lab.run_as("bob", ["scancel", str(running)])
    wait_state(lab, job, "RUNNING None")
    assert {state(lab, other).partition(" ")[0] for other in older} == {"PENDING"}
    wait_for(lambda: audit_events(lab, job), DEADLINE_S, "the audit has it", lambda: queue(lab), 0.5)
    (act,) = audit_events(lab, job)
    assert act.evidence["overtook"] == {"jobs": 3, "job_ids": older}
    assert act.evidence["preempted"] == []
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.root / "urgent-policy.yaml")])
