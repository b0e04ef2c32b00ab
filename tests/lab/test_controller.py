"""Test slurm-gpuctld with a real slurmctld: equal counts, low load, and recovery of both."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.daemons import Daemon
from lab.polling import wait_for
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot, parse

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: enforce
groups:
  vision: {accounts: [vision]}
  undergrads: {unix_groups: [undergrad]}
  everyone: {}
rules:
  - {id: share, for: everyone, per: user, why: "Others.", limits: {gpus_total: 64}}
"""
DEADLINE_S = 120.0
"""A deadline for asynchronous work of Slurm and slurm-gpuctld on a busy host."""
SEEN_S = 120
"""The seconds for which a snapshot lists accepted jobs."""
LATER = ("--begin=now+1hour", "--time=10", "--output=/dev/null", "--wrap=true")


@pytest.fixture(scope="module")
def bare(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    """Start Slurm with its limits and accounting, our job_submit.lua, and slurm-gpuctld."""
    lab = lab_with(services=False, controller=True)
    policy = lab.layout.root / "controller-policy.yaml"
    policy.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    yield lab
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture
def lab(bare: Lab) -> Iterator[Lab]:
    yield bare
    for daemon in bare.daemons.values():
        daemon.start()
    bare.cancel_all_jobs()


@pytest.fixture
def daemon(lab: Lab) -> Daemon:
    return lab.daemons["slurm-gpuctld"]


def path_of(lab: Lab) -> Path:
    return lab.layout.controller_run / "snapshot.txt"


def snapshot_after(lab: Lab) -> Snapshot:
    """Return the first snapshot whose poll of slurmctld began after this call."""
    asked_s = time.time()
    found: list[Snapshot] = []

    def came() -> bool:
        found[:] = [parse(path_of(lab).read_text())]
        return found[0].as_of_s > asked_s

    wait_for(came, DEADLINE_S, "a new snapshot comes", interval_s=0.1)
    return found[0]


def test_it_counts_what_slurm_counts(lab: Lab) -> None:
    wait = ("--time=30", "--output=/dev/null", "--wrap=sleep 900")
    running = [
        lab.submit("alice", "--gpus=2", "--mem=2G", *wait),
        lab.submit("alice", "--gres=shard:2", *wait),
        lab.submit("bob", "--gpus-per-node=1", "--nodes=2", *wait),
    ]
    for arguments in (
        ("--gpus=1", "--array=0-9%4"),
        ("--gres=gpu:a100:1", "--nodes=1-3"),
        ("--exclusive",),
        ("--gpus-per-task=1", "--ntasks=3"),
        (),
    ):
        lab.submit("alice", *arguments, *LATER)
    wait_for(
        lambda: len(lab.output(["squeue", "-h", "-t", "R"]).splitlines()) == len(running),
        DEADLINE_S,
        "jobs run",
        interval_s=0.5,
    )
    snapshot = snapshot_after(lab)
    alice, bob, both = (
        snapshot.usage.of("alice", "vision"),
        snapshot.usage.of("bob", "undergrads"),
        snapshot.usage.of(None, "everyone"),
    )
    # The shards are half of a GPU on a node that has only this type.
    assert (alice.running.jobs, alice.running.mgpu, alice.running.by_type) == (2, 2500, {"a100": 2500})
    assert (alice.pending.jobs, alice.pending.mgpu) == (14, 10_000 + 3000 + 4000 + 3000)
    assert (bob.running.jobs, bob.running.mgpu, bob.running.nodes) == (1, 2000, 2)
    assert (both.running.mgpu, both.pending.mgpu) == (4500, 20_000)
    assert snapshot.usage.uids["alice"] == int(lab.output(["id", "-u", "alice"]))
    # CPUs and memory of running jobs, as Slurm sums them for its limits.
    tres = "".join(lab.output(["squeue", "-h", "-t", "R", "-u", "alice", "-O", "tres-alloc:200"]))
    assert alice.running.cpus == sum(map(int, re.findall(r"cpu=(\d+)", tres)))
    assert set(snapshot.seen) >= recent_tokens(lab, snapshot.as_of_s)
    assert len(snapshot.seen) <= 8


def recent_tokens(lab: Lab, now_s: int) -> set[str]:
    """Return the recently submitted jobs; an array is one job."""
    rows = lab.output(["squeue", "-h", "-o", "%A %V"]).splitlines()
    submitted = {job_id: dt.datetime.fromisoformat(text) for job_id, text in (row.split() for row in rows)}
    recent = {job_id for job_id, at in submitted.items() if now_s - at.timestamp() < SEEN_S}
    comments = (lab.output(["scontrol", "show", "job", job_id]) for job_id in recent)
    return {token for comment in comments for token in re.findall(r"slurm-gpu/1 t=(\w+)", comment)}


def test_gpu_hours_are_those_of_slurms_accounting(lab: Lab) -> None:
    policy = lab.layout.root / "controller-hours.yaml"
    hours = POLICY.replace("gpus_total: 64", "gpu_hours: {month: 1000}")
    policy.write_text(hours)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    before = hours_of_bob(lab)
    job = lab.submit("bob", "--gpus=2", "--time=10", "--output=/dev/null", "--wrap=sleep 4")
    wait_for(lambda: state(lab, job) == "COMPLETED", DEADLINE_S, "the job ends", interval_s=0.5)
    used = 2 * int(lab.output(["sacct", "-nXj", str(job), "-o", "ElapsedRaw"])) / 3600
    wait_for(
        lambda: hours_of_bob(lab) - before == pytest.approx(used, abs=2e-3),
        DEADLINE_S,
        "its hours are counted",
        lambda: f"{before=} {used=} and now {hours_of_bob(lab)}",
    )
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.root / "controller-policy.yaml")])


def hours_of_bob(lab: Lab) -> float:
    def known() -> bool:
        return snapshot_after(lab).hours is not None

    wait_for(known, DEADLINE_S, "the accounting is read")
    hours = snapshot_after(lab).hours_of("bob", "everyone", "gpu_h_month")
    assert hours is not None
    return hours


def state(lab: Lab, job: int) -> str:
    return lab.output(["sacct", "-nXj", str(job), "-o", "State"]).strip()


def test_slurmctld_is_polled_at_most_once_a_second(lab: Lab) -> None:
    def asked() -> dict[str, int]:
        rows = re.findall(
            r"^\s*(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", lab.output(["sdiag"]), re.MULTILINE
        )
        return Counter({kind: int(number) for kind, number in rows})

    log = lab.layout.controller_run / "decisions.log"
    # slurm-gpuctld polls twice per second for three seconds after a decision.
    wait_for(lambda: time.time() - log.stat().st_mtime > 4, DEADLINE_S, "there is no decision for a while")
    began = time.monotonic()
    lab.run_as("root", ["sdiag", "--reset"])
    # Eight polls may take longer on a slow host, but slurm-gpuctld must not poll faster.
    wait_for(lambda: asked()["REQUEST_JOB_INFO"] >= 8, DEADLINE_S, "it is asked", interval_s=0.5)
    found = asked()
    seconds = time.monotonic() - began
    assert found["REQUEST_JOB_INFO"] <= seconds + 1
    assert found["REQUEST_PARTITION_INFO"] <= found["REQUEST_JOB_INFO"] + 2  # squeue requests both
    others = found["REQUEST_NODE_INFO"] + found["REQUEST_BUILD_INFO"]
    assert others <= seconds / 10 + 3  # every ten seconds, and every ten minutes


def test_a_controller_killed_at_any_moment_leaves_a_complete_snapshot(lab: Lab, daemon: Daemon) -> None:
    last = parse(path_of(lab).read_text())
    for _ in range(5):
        daemon.kill9()
        left = parse(path_of(lab).read_text())  # is always complete
        assert left.generation >= last.generation
        daemon.start()
        last = snapshot_after(lab)
        assert last.generation > left.generation


def test_an_outage_of_slurmctld_is_logged_once_and_harmless(lab: Lab, daemon: Daemon) -> None:
    before, lines = snapshot_after(lab), daemon.log.read_text().count("could not be written")
    lab.daemons["slurmctld"].kill9()
    wait_for(lambda: daemon.log.read_text().count("could not be written") > lines, DEADLINE_S, "it is said")
    assert parse(path_of(lab).read_text()).generation >= before.generation
    lab.daemons["slurmctld"].start()
    after = snapshot_after(lab)
    assert after.groups_id == before.groups_id
    assert daemon.running
    assert daemon.log.read_text().count("could not be written") == lines + 1


def test_a_new_policy_is_counted_after_one_poll(lab: Lab) -> None:
    before = snapshot_after(lab).groups_id
    policy = lab.layout.root / "controller-other.yaml"
    policy.write_text(POLICY.replace("accounts: [vision]", "accounts: [nlp]"))
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    lab.submit("alice", "--gpus=1", *LATER)
    snapshot = snapshot_after(lab)
    assert snapshot.groups_id not in (None, before)
    assert snapshot.usage.of(None, "vision").pending.jobs == 0
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.root / "controller-policy.yaml")])


def test_quota_shows_a_users_own_use_and_refusals_agree_with_it(lab: Lab) -> None:
    lab.submit("alice", "--gpus=2", *LATER)
    lab.submit("bob", "--gpus=3", *LATER)
    snapshot_after(lab)
    found = json.loads(lab.output(["slurm-gpu", "quota", "--json"], user="alice"))
    assert found["from"] == "snapshot"
    assert [(line["rule"], line["used"], line["limit"]) for line in found["limits"]] == [("share", 2.0, 64.0)]

    def refused() -> str:
        return lab.run_as("alice", ["sbatch", "--gpus=64", *LATER], check=False).stderr

    # Until the snapshot contains alice's job, it counts as "just submitted", like jobs of previous tests.
    wait_for(lambda: "used 2, limit 64, requested 64" in refused(), DEADLINE_S, "both say so", refused, 0.5)


def test_there_is_only_one(lab: Lab) -> None:
    second = lab.run_as("root", ["slurm-gpuctld", "--run-dir", str(lab.layout.controller_run)], check=False)
    assert second.returncode == 3
    assert "another slurm-gpuctld writes to" in second.stderr
    once = lab.run_as("root", ["slurm-gpuctld", "--once"])
    assert "calls to Slurm: scontrol 3" in once.stderr
    # Calls of squeue for its version and columns do not reach slurmctld.
    assert re.search(r"squeue [1-3] \(", once.stderr)
