"""Test zones on a real Slurm: distributed jobs use one zone and keep their constraints; none is refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from lab.cluster import Lab
from lab.daemons import Daemon
from lab.polling import wait_for
from slurm_gpu.controller.snapshot.snapshot_file import FRESH_S
from slurm_gpu.policy.lua.bundle import DECISIONS_LOG
from slurm_gpu.text.hostlist import expand
from tests.lab.conftest import LabWith

DEADLINE_S = 120.0
"""A deadline for asynchronous work of Slurm and slurm-gpuctld on a busy host."""
ZONES = {"n1": "zone1", "n2": "zone1", "n3": "zone2", "n4": "zone2"}
POLICY = "version: 1\ngroups: {everyone: {}}\nrules: []\n"


class Cluster:
    """The lab and the zones of its jobs."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.daemon: Daemon = lab.daemons["slurm-gpuctld"]
        self.snapshot = lab.layout.controller_run / "snapshot.txt"

    def run_in(self, mode: str, zone_wait: str = "30m") -> None:
        site = yaml.safe_load(self.lab.layout.site_file.read_text())
        site["placement"] = {"mode": mode, "zone_wait": zone_wait}
        self.lab.layout.site_file.write_text(yaml.safe_dump(site, sort_keys=False))
        self.snapshot.unlink(missing_ok=True)
        self.daemon.restart()
        self.wait(lambda: f"\nplacement {mode} " in self.text(), f"zones are published in mode {mode}")
        self.wait(lambda: self.decided().startswith(f"{mode}:"), f"job_submit.lua goes by mode {mode}")

    def text(self) -> str:
        return self.snapshot.read_text() if self.snapshot.exists() else ""

    def decided(self) -> str:
        """Return the zone scores that job_submit.lua logs for a test job."""
        ask = ["sbatch", "--test-only", "--nodes=2", "--gpus-per-node=1", "--wrap=true"]
        self.lab.run_as("alice", ask, check=False)  # fails if no two nodes are free
        decisions = self.lab.layout.controller_run / DECISIONS_LOG
        return decisions.read_text().splitlines()[-1].partition(" zone=")[2]

    def submit(self, *options: str, seconds: int = 3600) -> int:
        return self.lab.submit(
            "alice", "--time=60", "--output=/dev/null", *options, script=f"#!/bin/sh\nexec sleep {seconds}\n"
        )

    def show(self, job: int, field: str) -> str:
        """Return one column of squeue, or "" if the job has ended."""
        text = self.lab.output(["squeue", "-h", "--states=all", "-j", str(job), "-O", f"{field}:200"])
        return "" if text.strip() == "(null)" else text.strip()

    def zones_of(self, job: int) -> set[str]:
        return {ZONES[node] for node in expand(self.show(job, "NodeList"))}

    def wait_until_runs(self, job: int) -> None:
        self.wait(lambda: self.show(job, "State") == "RUNNING", f"job {job} runs")

    def wait(self, holds: Callable[[], object], what: str) -> None:
        wait_for(holds, DEADLINE_S, what, lambda: self.lab.output(["squeue", "-o", "%i %T %r %N %f"]), 0.2)

    def take(self, *nodes: str) -> list[int]:
        """Start an exclusive job on each node; return the job IDs."""
        jobs = [self.submit(f"--nodelist={node}", "--exclusive", "--gpus=1") for node in nodes]
        for job in jobs:
            self.wait_until_runs(job)
        return jobs

    def end(self, *jobs: int) -> None:
        self.lab.run_as("root", ["scancel", *map(str, jobs)])


@pytest.fixture(scope="module")
def own_lab(lab_with: LabWith) -> Iterator[Lab]:
    lab = lab_with(services=False, controller=True)
    site = lab.layout.site_file.read_text()
    policy = lab.layout.root / "zones-policy.yaml"
    policy.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    give_features(lab, "n4", "zone2,a100,nvlink")
    yield lab
    lab.cancel_all_jobs()
    give_features(lab, "n4", "zone2,a100")
    lab.layout.site_file.write_text(site)
    lab.daemons["slurm-gpuctld"].restart()
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


def give_features(lab: Lab, node: str, features: str) -> None:
    both = [f"AvailableFeatures={features}", f"ActiveFeatures={features}"]
    lab.run_as("root", ["scontrol", "update", f"NodeName={node}", *both])


@pytest.fixture
def cluster(own_lab: Lab) -> Iterator[Cluster]:
    own_lab.cancel_all_jobs()
    yield Cluster(own_lab)
    own_lab.cancel_all_jobs()


def test_a_job_waits_for_one_zone_though_nodes_are_free_in_two(cluster: Cluster) -> None:
    cluster.run_in("enforce")
    blocking = cluster.take("n1", "n3")
    job = cluster.submit("--nodes=2", "--gpus-per-node=4")
    assert set(cluster.show(job, "Feature").strip("[]").split("|")) == {"zone1", "zone2"}
    cluster.wait(lambda: cluster.show(job, "Reason") == "Resources", "the job waits for nodes")
    explained = cluster.lab.output(["slurm-gpu", "explain", str(job)])
    assert "is kept in one zone: zone" in explained
    assert f"Its constraint is {cluster.show(job, 'Feature')}; its owner requested none." in explained
    cluster.end(blocking[1])
    cluster.wait_until_runs(job)
    assert cluster.zones_of(job) == {"zone2"}


def test_explain_gives_the_reason_for_no_zone_before_and_after_submission(cluster: Cluster) -> None:
    cluster.run_in("advise")
    ask = ["--nodes=3", "--gpus-per-node=1", "--output=/dev/null", "--wrap=true"]
    words = "is not kept in one zone: no zone is large enough for it"
    assert words in cluster.lab.run_as("alice", ["slurm-gpu", "explain", "--", "sbatch", *ask]).stderr
    job = int(cluster.lab.run_as("alice", ["sbatch", *ask]).stdout.split()[-1])
    assert words in cluster.lab.output(["slurm-gpu", "explain", str(job)])


@pytest.mark.long
@pytest.mark.parametrize("own", ["", "a100", "a100|nvlink"])
def test_a_wait_that_ran_out_ends_with_the_users_own_constraint_and_the_place_in_the_queue(
    cluster: Cluster, own: str
) -> None:
    cluster.run_in("enforce", "5s")
    cluster.take("n1", "n3")
    constraint = [f"--constraint={own}"] if own else []
    job = cluster.submit("--nodes=2", "--gpus-per-node=4", *constraint)
    assert cluster.show(job, "Feature").endswith("]")
    submitted = cluster.show(job, "SubmitTime")
    cluster.wait_until_runs(job)
    assert cluster.zones_of(job) == {"zone1", "zone2"}
    assert cluster.show(job, "Feature") == own
    assert cluster.show(job, "SubmitTime") == submitted


def test_no_job_waits_for_a_zone_once_zones_are_not_enforced(cluster: Cluster) -> None:
    cluster.run_in("enforce")
    cluster.take("n1", "n3")
    job = cluster.submit("--nodes=2", "--gpus-per-node=4", "--constraint=a100")
    cluster.run_in("observe")
    cluster.wait_until_runs(job)
    assert cluster.show(job, "Feature") == "a100"


@pytest.mark.parametrize("own", ["[a100|zone1]", "a100*2", "(a100|zone1)&a100"])
def test_a_constraint_incompatible_with_zones_is_kept_with_a_message(cluster: Cluster, own: str) -> None:
    cluster.run_in("enforce")
    said = cluster.lab.run_as(
        "alice",
        [
            "sbatch",
            "--nodes=2",
            "--gpus-per-node=1",
            f"--constraint={own}",
            "--output=/dev/null",
            "--wrap=sleep 9",
        ],
    )
    job = int(said.stdout.split()[-1])
    assert "This job may span several zones" in said.stderr
    assert cluster.show(job, "Feature") == own


@pytest.mark.parametrize(
    ("own", "written"),
    [("a100", "a100&["), ("a100&a100", "(a100&a100)&["), ("a100|nvlink", "(a100|nvlink)&[")],
)
def test_a_constraint_of_its_owners_own_is_kept_in_the_zone(cluster: Cluster, own: str, written: str) -> None:
    cluster.run_in("enforce")
    job = cluster.submit("--nodes=2", "--gpus-per-node=1", f"--constraint={own}")
    cluster.wait_until_runs(job)
    assert cluster.show(job, "Feature").startswith(written)
    assert len(cluster.zones_of(job)) == 1


def test_a_job_larger_than_every_zone_runs_as_on_plain_slurm(cluster: Cluster) -> None:
    cluster.run_in("enforce")
    for options in (["--nodes=3", "--gpus-per-node=1"], ["--gpus=12"], ["--nodes=2-3", "--gpus-per-node=1"]):
        job = cluster.submit(*options)
        cluster.wait_until_runs(job)
        assert cluster.show(job, "Feature") == ""
        cluster.end(job)


@pytest.mark.long
def test_while_slurm_gpuctld_is_dead_jobs_pass_as_they_are(cluster: Cluster) -> None:
    cluster.run_in("enforce")
    cluster.take("n1", "n3")
    cluster.daemon.kill9()
    # The snapshot must become outdated, as documented.
    cluster.wait(lambda: time.time() - cluster.snapshot.stat().st_mtime > FRESH_S + 2, "the snapshot is old")
    job = cluster.submit("--nodes=2", "--gpus-per-node=4")
    cluster.wait_until_runs(job)
    assert cluster.show(job, "Feature") == ""
    cluster.daemon.start()


@pytest.mark.long
def test_no_job_straddles_zones(cluster: Cluster) -> None:
    cluster.run_in("enforce")
    chance = random.Random(7)
    jobs = []
    for _ in range(30):
        nodes = chance.choice([1, 2, 2])
        gpus = chance.randint(1, 4)
        # Without --nodes, Slurm 26.05 spreads four GPUs over several nodes if no node has four.
        fixed = ["--nodes=1"] if nodes == 1 else []
        form = chance.choice(
            [[f"--nodes={nodes}", f"--gpus-per-node={gpus}"], [f"--gpus={4 * nodes}", *fixed]]
        )
        jobs.append((cluster.submit(*form, seconds=chance.randint(1, 3)), form))

    def over() -> bool:
        return not cluster.lab.output(["squeue", "-h", "-t", "PD,R,CG"]).strip()

    cluster.wait(over, "all jobs have run")
    for job, form in jobs:
        nodes = expand(cluster.show(job, "NodeList"))
        assert nodes, form
        assert len({ZONES[node] for node in nodes}) == 1, (job, form, nodes)
