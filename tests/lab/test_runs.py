"""Test that a requeued job has two runs, each with its own record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab import cgroups
from lab.cluster import Lab
from lab.polling import wait_for
from tests.lab.records import runs_of

WORK = """#!/bin/sh
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && seconds=250 || seconds=4
exec simgpu --util 70 --mem-mib 4096 --seconds $seconds
"""


def test_a_requeued_job_has_two_runs_with_their_own_records(lab: Lab) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", "--requeue", script=WORK)
    (first,) = wait_for(lambda: lab.intervals(job), 60, f"job {job} starts")
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
        assert device["allocated_s"] == pytest.approx(share.end_s - share.start_s, abs=0.5)
        assert run["uGPUcore"] == pytest.approx(share.usage.util_pct, abs=1.0)


@pytest.mark.long
def test_short_runs_without_a_prolog_are_recorded_from_their_start(lab: Lab, no_second_prolog: None) -> None:
    if cgroups.probe().version is cgroups.CgroupVersion.NONE:
        pytest.skip("only the job's cgroup has its start time")
    jobs = [
        lab.submit("alice", f"-w{node}", "--gpus=1", "--time=5", "--requeue", script=_work(seconds))
        for node, seconds in zip(lab.nodes, (3, 4, 6, 8), strict=True)
    ]
    wait_for(lambda: all(lab.intervals(job) for job in jobs), 60, "all have started")
    # A restarted slurm-gpud lists the jobs twice before it excludes unknown jobs on its GPUs.
    started_s = time.time()
    wait_for(lambda: time.time() > started_s + 25, 60, "slurm-gpud has listed the jobs twice")
    for job in jobs:
        lab.output(["scontrol", "requeue", str(job)])
    for job in jobs:
        run = wait_for(partial(_last_run, lab, job), 120, f"job {job} is recorded", interval_s=0.5)
        (device,) = run["devices"]
        assert (device["restart"], run["events"]) == (1, []), job
        assert run["coverage"] == pytest.approx(1, abs=0.15), job
        assert run["uGPUcore"] > 45, job
        assert len(lab.intervals(job)) == 1, "the prolog ran"


@pytest.fixture
def no_second_prolog(lab: Lab) -> Iterator[None]:
    """Run no prolog after a requeue, like a slurmd that still remembers the job ID."""
    prolog = lab.layout.etc / "prolog.d" / "10-slurm-gpu"
    whole = prolog.read_text()
    first, _, rest = whole.partition("\n")
    _replace(prolog, f'{first}\n[ "${{SLURM_JOB_RESTART_COUNT:-0}}" = 0 ] || exit 0\n{rest}')
    yield
    _replace(prolog, whole)


def _replace(hook: Path, text: str) -> None:
    """Replace a hook by one rename: Slurm drains a node if a hook is missing or not executable."""
    fresh = hook.parent.parent / "fresh-hook"
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.rename(hook)


def _work(seconds: int) -> str:
    return WORK.replace("seconds=4", f"seconds={seconds}")


def _last_run(lab: Lab, job: int) -> dict[str, Any] | None:
    """Return the run that completed, once both runs are recorded."""
    return next((run for run in _complete_runs(lab, job) if run["state"] == "COMPLETED"), None)


def _ended(lab: Lab, job: int) -> int:
    return sum(interval.end_s is not None for interval in lab.intervals(job))


def _complete_runs(lab: Lab, job: int) -> list[dict[str, Any]]:
    """Return both runs of the job once Slurm reports their ends and they have final records, else []."""
    runs = runs_of(lab, job)
    done = [
        run for run in runs if run["end_s"] is not None and any(device["final"] for device in run["devices"])
    ]
    return runs if len(done) == 2 else []
