"""Test a killed slurmctld, which loses its last seconds and assigns the IDs of its last jobs again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of

pytestmark = pytest.mark.long


def submit(lab: Lab, *options: str, seconds: int = 4) -> int:
    return lab.submit("alice", "--gpus=1", "--time=5", "--no-requeue", *options, f"--wrap=sleep {seconds}")


def accounted(lab: Lab, job: int) -> list[str]:
    """Return the states in the job's rows of Slurm's accounting."""
    return lab.output(["sacct", "-aXnPD", f"-j{job}", "-Snow-1days", "-oState"]).split()


def nodes_of(run: Mapping[str, Any]) -> set[str]:
    """Return the nodes that recorded the run."""
    return {record["node"] for record in run["devices"]}


def runaways(lab: Lab) -> tuple[str, str]:
    """Return the level and message of doctor's check of runaway jobs."""
    done = lab.run_as("root", ["slurm-gpu", "doctor", "--json"], check=False).stdout
    (found,) = [item for item in json.loads(done)["checks"] if item["check"] == "runaways"]
    return found["level"], found["message"]


def test_a_number_that_is_given_again_is_two_jobs_and_the_forgotten_are_named(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    slurmctld, state = lab.daemons["slurmctld"], lab.layout.slurmctld
    slurmctld.stop()
    saved = state.with_name("saved")
    shutil.copytree(state, saved)
    slurmctld.start()
    runs, waits = submit(lab, "-wn1", seconds=60), submit(lab, "-wn1", "--exclusive")
    wait_for(lambda: accounted(lab, waits) == ["PENDING"], 60, "slurmdbd has the pending job")
    wait_for(lambda: accounted(lab, runs) == ["RUNNING"], 60, "and of the one that runs")
    wait_for(lambda: lab.intervals(runs), 60, "it has its GPU")

    slurmctld.kill9()
    shutil.rmtree(state)
    shutil.copytree(saved, state)
    for path in (state, *state.rglob("*")):
        shutil.chown(path, "slurm", "slurm")
    slurmctld.start()
    assert (submit(lab, "-wn2"), submit(lab, "-wn3")) == (runs, waits)

    def records(job: int) -> str:
        return f"{accounted(lab, job)}\n{json.dumps(runs_of(lab, job), indent=1)[:1000]}"

    def are_on(job: int, nodes: list[set[str]]) -> bool:
        found = runs_of(lab, job)
        final = all(record["final"] for run in found for record in run["devices"])
        ends = [run["state"] == "COMPLETED" for run in found]
        return final and ends == [True, False] and [nodes_of(run) for run in found] == nodes

    for job, nodes in ((runs, [{"n2"}, {"n1"}]), (waits, [{"n3"}, set[str]()])):
        recorded = f"both jobs with the number {job} have records on their nodes"
        wait_for(partial(are_on, job, nodes), 120, recorded, partial(records, job), 0.5)
        assert runs_of(lab, job)[1]["end_s"] is None

    level, message = runaways(lab)
    assert level == "warn"
    assert f"2 jobs ({', '.join(map(str, (waits, runs)))}) are active" in message
    lab.run_as("root", ["sacctmgr", "-i", "show", "runawayjobs"])
    wait_for(lambda: runaways(lab)[0] == "ok", 60, "sacctmgr has ended them", interval_s=0.5)
