"""A run is one execution of a job: a requeued job has two, each with its own record."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

WORK = """#!/bin/sh
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && seconds=250 || seconds=4
exec simgpu --util 70 --mem-mib 4096 --seconds $seconds
"""


def test_a_requeued_job_has_two_runs_with_their_own_records(lab: Lab) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", "--requeue", script=WORK)
    (first,) = wait_for(lambda: lab.held(job), 60, f"job {job} starts")
    wait_for(lambda: time.time() > first.start_s + 2, 30, "it has worked for 2 s")
    lab.output(["scontrol", "requeue", str(job)])
    wait_for(lambda: _ended(lab, job) == 2, 120, "its second run ends")

    runs = wait_for(lambda: _complete_runs(lab, job), 90, "both runs are recorded", interval_s=0.5)
    assert {run["state"] for run in runs} == {"REQUEUED", "COMPLETED"}
    records = {device["segment"]: device for run in runs for device in run["devices"]}
    assert len(records) == 2
    assert [len(run["devices"]) for run in runs] == [1, 1]
    by_restart = {share.restart: share for share in lab.truth(job)}
    for run in runs:
        restart = 0 if run["state"] == "REQUEUED" else 1
        (device,) = run["devices"]
        share = by_restart[restart]
        assert device["restart"] == restart
        assert device["device"] == share.gpu.uuid
        assert device["held_s"] == pytest.approx(share.end_s - share.start_s, abs=0.5)
        assert run["uGPUcore"] == pytest.approx(share.usage.util_pct, abs=1.0)


def _ended(lab: Lab, job: int) -> int:
    return sum(held.end_s is not None for held in lab.held(job))


def _complete_runs(lab: Lab, job: int) -> list[dict[str, Any]]:
    """Both runs of the job, once each has ended, says Slurm, and has a final record; [] until then."""
    shown = lab.run_as("carol", ["slurm-gpu", "job", str(job), "--json"], check=False)
    if shown.returncode != 0:
        return []
    runs: list[dict[str, Any]] = json.loads(shown.stdout)["runs"]
    done = [
        run for run in runs if run["end_s"] is not None and any(device["final"] for device in run["devices"])
    ]
    return runs if len(done) == 2 else []
