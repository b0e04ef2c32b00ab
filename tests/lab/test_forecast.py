"""Forecasts of waits are trained on jobs in the lab and compared with outcomes."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from tests.lab.records import runs_of

pytestmark = pytest.mark.long

PAST = ("carol", "alice") * 3
"""The users of earlier jobs, each with as many jobs at a time as the policy of the lab allows."""
WORK_S = 4
NODE = ("--gpus=4", "--nodelist=n1", "--output=/dev/null")
"""Each job requests all GPUs of one node, so only one runs at a time."""


def test_a_waiting_job_has_a_forecast_that_is_later_judged(lab: Lab) -> None:
    alice = ("slurm-gpu", "forecast")
    past = [
        lab.submit(user, *NODE, f"--time={10 + number}", f"--wrap=sleep {WORK_S}")  # equal ones count less
        for number, user in enumerate(PAST)
    ]
    wait_for(lambda: all(_started(lab, job) for job in past), 300, "all are known to have waited")
    nothing = lab.run_as("alice", [*alice, "--", "sbatch", "--gpus=1", "--wrap=true"], check=False)
    assert (nothing.returncode, "slurm-gpu forecast train" in nothing.stdout) == (1, True)
    train = ["slurm-gpu", "forecast", "train", f"--database-config={lab.layout.database_file}"]
    trained = lab.run_as("root", train, timeout_s=300).stdout
    assert re.match(r"trained on \d+ observations? of waiting jobs", trained), trained

    blocker = lab.submit("carol", *NODE, "--time=20", "--wrap=sleep 900")
    wait_for(lambda: lab.intervals(blocker), 60, "the node is taken")
    job = lab.submit("alice", *NODE, "--time=10", "--wrap=true")
    said = wait_for(
        lambda: _forecast_of(lab, "alice", str(job)),
        120,
        "slurm-gpudbd sees it wait",
        lambda: lab.run_as("alice", [*alice, str(job)], check=False).stderr,
    )
    assert said["full"]
    assert said["lower_s"] < said["median_s"] < said["upper_s"] < 3600
    assert said["past"]["n"] == 0
    shown = lab.output([*alice, str(job)], "alice")
    assert f"job {job} will probably start" in shown
    assert "not validated, because too few jobs with GPUs waited recently" in shown
    before = lab.output([*alice, "--", "sbatch", "--gpus=1", "--time=5", "--wrap=true"], "alice")
    assert before.startswith("this job, submitted now, will probably start")
    assert not _forecast_of(lab, "bob", str(job))["full"], "reasons of others' jobs are hidden"

    lower_s, upper_s = said["at_s"] + said["lower_s"], said["at_s"] + said["upper_s"]
    wait_for(
        lambda: time.time() > lower_s, said["lower_s"] + 10, "the interval, which is what is promised, begins"
    )
    lab.output(["scancel", str(blocker)])
    over = wait_for(lambda: _refused(lab, job), 60, f"job {job} is seen to wait no more")
    assert "waited" in over or "no longer pending" in over
    wait_for(lambda: time.time() > upper_s + 2, said["upper_s"] + 10, "the interval is over")
    asked = ["slurm-gpu", "forecast", "--json", "--", "sbatch", "--gpus=1", "--wrap=true"]
    past = wait_for(lambda: _judged(lab.output(asked, "alice")), 60, "the forecast is judged")
    (run,) = wait_for(lambda: runs_of(lab, job, "alice"), 60, f"job {job} is imported")
    right = said["lower_s"] - 1 <= run["start_s"] - said["at_s"] <= said["upper_s"] + 1
    assert (past["n"], past["correct"]) == (1, int(right))
    unknown = lab.run_as("alice", [*alice, "999999"], check=False)
    assert (unknown.returncode, "there is no job 999999" in unknown.stderr) == (2, True)


def _started(lab: Lab, job: int) -> bool:
    return any(run["start_s"] is not None for run in runs_of(lab, job, "root"))


def _forecast_of(lab: Lab, user: str, job: str) -> dict[str, Any]:
    """Return the forecast of slurm-gpudbd; {} while it has no such job."""
    done = lab.run_as(user, ["slurm-gpu", "forecast", "--json", job], check=False)
    forecast: dict[str, Any] = json.loads(done.stdout)["forecast"] if done.returncode == 0 else {}
    return forecast


def _refused(lab: Lab, job: int) -> str:
    """Return the reason for a missing forecast of a job, or "" if it has one."""
    done = lab.run_as("alice", ["slurm-gpu", "forecast", str(job)], check=False)
    return done.stderr if done.returncode == 2 else ""


def _judged(answer: str) -> dict[str, Any]:
    """Return the accuracy of past forecasts; {} without any."""
    past: dict[str, Any] = json.loads(answer)["forecast"]["past"]
    return past if past["n"] else {}
