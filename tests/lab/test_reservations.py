"""Test that approved reservations exist in a real Slurm, receive jobs, and are removed when unused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from lab.cluster import Lab
from lab.configuration import slurm_version
from lab.polling import wait_for
from slurm_gpu.client.database_client import AuditEvent, DatabaseClient, Reservation
from slurm_gpu.config.site import load_config
from slurm_gpu.slurm.reservations import ReservationClient
from slurm_gpu.slurm.runner import CommandRunner
from slurm_gpu.wire.answers.reservation import ReservationState
from tests.lab.conftest import LabWith

pytestmark = pytest.mark.long

DEADLINE_S = 120.0
"""A deadline for asynchronous work of Slurm and slurm-gpuctld."""
UNUSED_S = 20
SITES_OWN = "ReservationName=maintenance StartTime=now+86400 Duration=60 Users=root Nodes=n4"


class Cluster:
    """The lab, with the reservations in the database and in Slurm."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.database = DatabaseClient(load_config(lab.layout.site_file))
        self.controller = lab.daemons["slurm-gpuctld"]

    def close(self) -> None:
        for one in self.database.reservations():
            self.database.decide_reservation(one.id, "cancel")
        self.lab.cancel_all_jobs()
        self.wait(lambda: not self.ours(), "Slurm has no reservation of ours")
        self.database.close()

    def ask(self, *options: str) -> int:
        argv = ["slurm-gpu", "reserve", "request", "--gpus=8", "--time=10m", "--why=paper", *options]
        said = self.lab.run_as("alice", argv).stdout
        assert said.startswith("Request "), said
        return int(said.split()[1].rstrip(":"))

    def promise(self, number: int, nodes: str, in_s: int = 1) -> Reservation:
        """Approve a reservation as `approve` does, but with a start less than a minute from now."""
        start_s = int(time.time()) + in_s
        (one,) = [row for row in self.database.reservations() if row.id == number]
        return self.database.decide_reservation(
            number, "approve", start_s=start_s, end_s=start_s + one.duration_s + UNUSED_S, nodes=nodes
        )

    def row(self, number: int) -> Reservation:
        (found,) = [row for row in self.database.reservations(ids=[number]) if row.id == number]
        return found

    def shown(self) -> str:
        return self.lab.output(["scontrol", "-o", "show", "reservation"])

    def ours(self) -> list[str]:
        words = self.shown().split()
        return [word.partition("=")[2] for word in words if word.startswith("ReservationName=sg_")]

    def submit(self, user: str, *options: str) -> int:
        return self.lab.submit(
            user, "--time=5", "--output=/dev/null", *options, script="#!/bin/sh\nexec sleep 3600\n"
        )

    def show(self, job: int, field: str) -> str:
        return self.lab.output(["squeue", "-h", "--states=all", "-j", str(job), "-O", f"{field}:200"]).strip()

    def doctor(self) -> tuple[str, str]:
        said = self.lab.run_as("root", ["slurm-gpu", "doctor", "--json"], check=False).stdout
        (found,) = [check for check in json.loads(said)["checks"] if check["check"] == "reservations"]
        return found["level"], found["message"]

    def wait(self, holds: Callable[[], object], what: str) -> None:
        wait_for(holds, DEADLINE_S, what, lambda: self.shown() + self.controller.log_tail(), 0.3)


@pytest.fixture(scope="module")
def own_lab(lab_with: LabWith) -> Iterator[Lab]:
    lab = lab_with()
    before = lab.layout.site_file.read_text()
    site: dict[str, Any] = yaml.safe_load(before)
    site["placement"] = {"reservations": {"release_unused": f"{UNUSED_S}s"}}
    lab.layout.site_file.write_text(yaml.safe_dump(site, sort_keys=False))
    for name in ("slurm-gpudbd", "slurm-gpuctld"):
        lab.daemons[name].restart()
    lab.run_as("root", ["scontrol", "create", "reservation", *SITES_OWN.split()])
    yield lab
    lab.run_as("root", ["scontrol", "delete", "ReservationName=maintenance"])
    lab.layout.site_file.write_text(before)
    for name in ("slurm-gpudbd", "slurm-gpuctld"):
        lab.daemons[name].restart()


@pytest.fixture
def cluster(own_lab: Lab) -> Iterator[Cluster]:
    own_lab.cancel_all_jobs()
    cluster = Cluster(own_lab)
    before = [line for line in cluster.shown().splitlines() if "maintenance" in line]
    yield cluster
    cluster.close()
    assert [line for line in cluster.shown().splitlines() if "maintenance" in line] == before


def test_an_approved_reservation_is_created_in_slurm_and_a_cancelled_one_removed(cluster: Cluster) -> None:
    lab, number = cluster.lab, cluster.ask()
    refused = lab.run_as("alice", ["slurm-gpu", "reserve", "approve", str(number)], check=False)
    assert refused.returncode != 0
    assert "only operators may approve a reservation" in refused.stderr
    said = lab.run_as("carol", ["slurm-gpu", "reserve", "approve", str(number)]).stdout
    assert f"its name in Slurm is sg_{number}.\n" in said
    cluster.wait(lambda: cluster.ours() == [f"sg_{number}"], "Slurm has it")
    (line,) = [line for line in cluster.shown().splitlines() if f"sg_{number} " in line]
    assert "Flags=SPEC_NODES,MAGNETIC" in line
    assert "Users=alice" in line
    assert "Accounts=vision" in line
    calendar = lab.run_as("bob", ["slurm-gpu", "reserve", "list"]).stdout
    assert "approved" in calendar
    assert "maintenance" in calendar
    assert cluster.doctor() == ("ok", "Slurm has every promised reservation: 1 reservation")
    lab.run_as("alice", ["slurm-gpu", "reserve", "cancel", str(number)])
    cluster.wait(lambda: not cluster.ours(), "Slurm has it no more")
    assert cluster.doctor()[0] == "ok"


def test_a_reservation_attracts_its_job_and_is_released_afterwards(cluster: Cluster) -> None:
    number = cluster.ask()
    cluster.promise(number, "n[1-2]")
    cluster.wait(lambda: cluster.row(number).state is ReservationState.ACTIVE, "it has begun")
    for user in ("carol", "bob"):  # with the same account, and with another
        job = cluster.submit(user, "--nodelist=n1", "--gpus=1")
        cluster.wait(
            lambda job=job: "eserv" in cluster.show(job, "Reason"), "others wait for what is reserved"
        )
    training = cluster.submit("alice", "--nodes=2", "--gpus-per-node=4")
    cluster.wait(lambda: cluster.show(training, "State") == "RUNNING", "the training runs")
    assert cluster.show(training, "NodeList") == "n[1-2]"
    assert cluster.show(training, "Reservation") == f"sg_{number}"
    cluster.wait(lambda: cluster.row(number).first_start_s is not None, "its start is reported")
    promised = cluster.row(number)
    assert promised.first_job_id == training
    assert promised.state is ReservationState.ACTIVE
    cluster.lab.run_as("root", ["scancel", str(training)])
    cluster.wait(lambda: cluster.row(number).state is ReservationState.RELEASED, "the rest is released")
    assert cluster.row(number).ended_why == f"no job for {UNUSED_S}s: the training is over"
    cluster.wait(lambda: not cluster.ours(), "Slurm has it no more")
    past = cluster.lab.run_as("alice", ["slurm-gpu", "reserve", "list", "--past"]).stdout
    assert "the training is over" in past
    assert "Promised and used: " in past


def test_cancelled_jobs_are_not_the_first_and_cancelled_reservations_attract_none(
    cluster: Cluster,
) -> None:
    number = cluster.ask()
    cluster.promise(number, "n[1-2]")
    cluster.wait(lambda: cluster.ours() == [f"sg_{number}"], "Slurm has it")
    gone = cluster.submit("alice", f"--reservation=sg_{number}", "--begin=now+600", "--gpus=1")
    cluster.lab.run_as("root", ["scancel", str(gone)])
    cluster.wait(lambda: cluster.row(number).state is ReservationState.ACTIVE, "it has begun")
    training = cluster.submit("alice", "--nodes=1", "--gpus-per-node=4")
    cluster.wait(lambda: cluster.row(number).first_start_s is not None, "a start is reported")
    assert cluster.row(number).first_job_id == training
    cluster.lab.run_as("alice", ["slurm-gpu", "reserve", "cancel", str(number)])
    cluster.wait(lambda: "MAGNETIC" not in cluster.shown(), "it draws no more jobs")
    assert cluster.ours() == [f"sg_{number}"]  # while a job runs in it
    following = cluster.submit("alice", "--nodes=1", "--gpus-per-node=4")
    cluster.wait(lambda: cluster.show(following, "State") == "RUNNING", "the next job runs")
    assert cluster.show(following, "Reservation") == "(null)"
    cluster.lab.run_as("root", ["scancel", str(training)])
    cluster.wait(lambda: not cluster.ours(), "Slurm has it no more")


def test_a_job_longer_than_its_reservation_continues_unless_its_nodes_are_promised(cluster: Cluster) -> None:
    """Create the second reservation later: Slurm attracts no job whose time overlaps another reservation."""
    lab, snapshot = cluster.lab, cluster.lab.layout.controller_run / "snapshot.txt"
    first, after = cluster.ask("--time=1m"), cluster.ask("--gpus=4", "--time=5m")
    one = cluster.promise(first, "n[1-2]", in_s=12)
    assert one.start_s is not None
    assert one.end_s is not None
    cluster.wait(lambda: cluster.ours() == [f"sg_{first}"], "Slurm has it")
    cluster.wait(lambda: time.time() > one.start_s + 1, "it has begun")
    cluster.wait(lambda: f" sg_{first} " in snapshot.read_text(), "the snapshot has it")
    beforehand = ["slurm-gpu", "explain", "--", "sbatch", "--time=5", "--gpus=1", "--wrap=true"]
    assert f"in your reservation sg_{first}," in lab.run_as("alice", beforehand).stdout
    too_large = ["slurm-gpu", "explain", "--", "sbatch", f"--reservation=sg_{first}", "--gpus=9"]
    refused = lab.run_as("alice", [*too_large, "--wrap=true"], check=False)
    assert refused.returncode == 1
    assert f"--gpus: 9 requested, but reservation sg_{first} has 8" in refused.stdout

    def submit(node: str) -> tuple[int, str]:
        argv = ["sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gpus=1", f"--nodelist={node}"]
        said = lab.run_as("alice", [*argv, "--wrap=exec sleep 3600"])
        return int(said.stdout), said.stderr

    cluster.controller.kill9()  # it could release the reservation too early
    (free, said), (promised, _) = submit("n1"), submit("n2")
    assert f"Slurm may run this job in your reservation sg_{first}, which ends " in said
    assert "To run elsewhere: --exclude=n[1-2]" in said
    if slurm_version() >= (26, 5):  # since 26.05, a reservation attracts no longer job
        for job in (free, promised):
            cluster.wait(lambda job=job: cluster.show(job, "State") == "PENDING", "it waits")
            assert cluster.show(job, "Reservation") == "(null)"
        cluster.controller.start()
        return
    for job in (free, promised):
        cluster.wait(lambda job=job: cluster.show(job, "Reservation") == f"sg_{first}", "it is drawn in")
    cluster.promise(after, "n2", in_s=one.end_s + 2 - int(time.time()))
    cluster.controller.start()
    cluster.wait(lambda: cluster.show(free, "Reservation") == "(null)", "the job leaves it")
    assert cluster.show(promised, "Reservation") == f"sg_{first}"
    cluster.wait(lambda: cluster.show(promised, "State") == "TIMEOUT", "whose node is promised ends with it")
    assert cluster.show(free, "State") == "RUNNING"


def test_an_unused_reservation_is_released_for_others(cluster: Cluster) -> None:
    number = cluster.ask()
    cluster.promise(number, "n[1-2]")
    cluster.wait(lambda: cluster.ours() == [f"sg_{number}"], "Slurm has it")
    job = cluster.submit("bob", "--nodelist=n1", "--gpus=1")
    cluster.wait(lambda: cluster.row(number).state is ReservationState.RELEASED, "it is released")
    assert cluster.row(number).ended_why == f"unused for {UNUSED_S}s"
    cluster.wait(lambda: cluster.show(job, "State") == "RUNNING", "another user has the node")


def test_a_failed_node_is_reported_and_its_replacement_by_an_operator_kept(
    cluster: Cluster,
) -> None:
    """Let an operator replace the node; slurm-gpuctld does so only after ten minutes of the node's outage."""
    number = cluster.ask()
    cluster.promise(number, "n[1-2]", in_s=3600)
    cluster.wait(lambda: cluster.ours() == [f"sg_{number}"], "Slurm has it")
    node = ["scontrol", "update", "NodeName=n2"]
    cluster.lab.run_as("root", [*node, "State=DRAIN", "Reason=fan"])
    try:
        cluster.wait(lambda: "n2 is out of service" in cluster.doctor()[1], "doctor names the node")
        ReservationClient(run_in(cluster.lab)).move(f"sg_{number}", "n[1,3]")
        cluster.wait(lambda: cluster.row(number).nodes == "n[1,3]", "the table has it")
        assert cluster.row(number).error is None
    finally:
        cluster.lab.run_as("root", [*node, "State=RESUME"])
    cluster.wait(lambda: cluster.doctor()[0] == "ok", "all is well")
    assert "Nodes=n[1,3]" in cluster.shown()


def run_in(lab: Lab) -> CommandRunner:
    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        return lab.run_as("root", argv).stdout

    return run


def test_kill_9_restarts_and_a_reconfiguration_leave_what_is_promised(cluster: Cluster) -> None:
    first, second = cluster.ask(), cluster.ask()
    cluster.promise(first, "n[1-2]", in_s=3600)
    cluster.controller.kill9()
    cluster.promise(second, "n[3-4]", in_s=3600)
    cluster.controller.start()
    names = {f"sg_{first}", f"sg_{second}"}
    cluster.wait(lambda: set(cluster.ours()) == names, "both are made")
    cluster.lab.run_as("root", ["scontrol", "reconfigure"])
    cluster.controller.kill9()
    try:
        cluster.database.decide_reservation(first, "cancel")
        # slurmctld saves its state periodically; if killed this early, it may lose both reservations.
        cluster.lab.daemons["slurmctld"].kill9()
        cluster.lab.daemons["slurmctld"].start()
        cluster.lab.run_as("root", ["scontrol", "delete", f"ReservationName=sg_{second}"], check=False)
    finally:
        cluster.controller.start()
    cluster.wait(
        lambda: cluster.ours() == [f"sg_{second}"], "what is cancelled is gone, what was lost is back"
    )
    # The restarted slurmctld counts nodes as out of service until they have registered.
    fine = ("ok", "Slurm has every promised reservation: 1 reservation")
    cluster.wait(lambda: cluster.doctor() == fine, "doctor finds nothing wrong")


def test_a_reservation_is_created_despite_running_jobs(cluster: Cluster) -> None:
    job = cluster.submit("bob", "--nodelist=n1", "--gpus=1")
    cluster.wait(lambda: cluster.show(job, "State") == "RUNNING", "a job runs there")
    number = cluster.ask()
    cluster.promise(number, "n[1-2]", in_s=5)
    cluster.wait(lambda: cluster.ours() == [f"sg_{number}"], "Slurm has it")
    assert "IGNORE_JOBS" in cluster.shown()

    def acts() -> list[AuditEvent]:
        return [
            act for act in cluster.database.acts() if act.subject == f"sg_{number}" and "made" in act.action
        ]

    cluster.wait(acts, "the audit has it")
    assert "jobs may still run on its nodes" in acts()[0].why


def test_the_sites_own_are_planned_around_and_never_touched(cluster: Cluster) -> None:
    own = "ReservationName=sg_900 StartTime=now+3600 Duration=60 Users=root Nodes=n[1-2]"
    cluster.lab.run_as("root", ["scontrol", "create", "reservation", *own.split()])
    try:
        number = cluster.ask("--earliest=1h")
        said = cluster.lab.run_as("carol", ["slurm-gpu", "reserve", "approve", str(number)]).stdout
        assert "on n[3-4], for 10m" in said
        cluster.wait(lambda: set(cluster.ours()) == {"sg_900", f"sg_{number}"}, "both are there")
        level, message = cluster.doctor()
        assert level == "warn"
        assert "sg_900 in Slurm is named like slurm-gpu's reservations, but is not one of them" in message
        cluster.database.decide_reservation(number, "cancel")
        cluster.wait(lambda: cluster.ours() == ["sg_900"], "ours alone is gone")
    finally:
        cluster.lab.run_as("root", ["scontrol", "delete", "ReservationName=sg_900"])


def test_from_a_size_on_jobs_need_one_and_who_has_one_is_drawn_in(cluster: Cluster) -> None:
    lab, asked = cluster.lab, ["--nodes=2", "--gpus-per-node=4", "--time=5"]
    before = lab.layout.site_file.read_text()
    site = yaml.safe_load(before)
    site["placement"] |= {"mode": "enforce"}
    site["placement"]["reservations"] |= {"required_gpus": 8}
    lab.layout.site_file.write_text(yaml.safe_dump(site, sort_keys=False))
    snapshot = lab.layout.controller_run / "snapshot.txt"
    try:
        cluster.controller.restart()
        cluster.wait(lambda: "\nreserve enforce mgpu=8000\n" in snapshot.read_text(), "it is published")
        refused = lab.run_as("alice", ["sbatch", *asked, "--wrap=true"], check=False)
        assert refused.returncode != 0
        assert "Refused by the reservation rule: jobs with 8 or more GPUs" in refused.stderr
        assert "slurm-gpu reserve request --gpus 8 --nodes 2 --time 0-00:05:00" in refused.stderr
        number = cluster.ask()
        cluster.promise(number, "n[2-3]")  # in two zones
        cluster.wait(lambda: "\nreserved alice vision gpu 8000 " in snapshot.read_text(), "it is promised")
        cluster.wait(lambda: cluster.ours(), "Slurm has it")
        training = cluster.submit("alice", *asked)
        cluster.wait(lambda: cluster.show(training, "State") == "RUNNING", "the training runs")
        assert cluster.show(training, "NodeList") == "n[2-3]"
    finally:
        lab.layout.site_file.write_text(before)
        cluster.controller.restart()
