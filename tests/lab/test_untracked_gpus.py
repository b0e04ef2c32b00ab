"""Test that nodes report the GPUs of jobs if AccountingStorageTRES and thus accounting lack GPUs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of


def test_gpus_that_slurm_does_not_account_for_are_counted_by_their_node(lab_with: LabWith) -> None:
    lab = lab_with(nodes=1, job_submit=JobSubmit.NOOP, extra_slurm_conf=("AccountingStorageTRES=cpu",))
    job = lab.submit("alice", "--gpus=2", "--mem=1G", script="#!/bin/sh\nsimgpu --util 50 --seconds 14\n")
    cpu_only = lab.submit("alice", "--mem=1G", script="#!/bin/sh\ntrue\n")
    waiting = lab.submit("alice", "--begin=now+1hour", "--gpus=4", "--mem=1G", script="#!/bin/sh\ntrue\n")
    running = wait_for(partial(_free_while, lab, job), 60, "the job runs", interval_s=0.3)
    assert running == {"a100": 2}
    run = wait_for(partial(_measured, lab, job), 120, f"the records of job {job} arrive", interval_s=0.5)
    assert (run["nGPU"], len(run["devices"])) == (2, 2)
    other = wait_for(partial(_run, lab, cpu_only), 60, "the other job is imported", interval_s=0.5)
    assert other["nGPU"] is None
    asked = wait_for(
        partial(_run, lab, waiting, "PENDING"), 60, "the waiting job is imported", interval_s=0.5
    )
    assert (asked["nGPU"], asked["nGPU_requested"]) == (None, None)
    assert "had no GPU" not in lab.run_as("alice", ["slurm-gpu", "job", str(cpu_only)]).stdout
    doctor = lab.run_as("root", ["slurm-gpu", "doctor"], check=False).stdout
    assert "AccountingStorageTRES lacks gres/gpu and gres/shard" in doctor


def _run(lab: Lab, job: int, state: str = "COMPLETED") -> dict[str, Any]:
    """Return the run of a job in a given state, {} until that state is imported."""
    return next((run for run in runs_of(lab, job) if run["state"] == state), {})


def _measured(lab: Lab, job: int) -> dict[str, Any]:
    """Return the run once it has records and nGPU, which each import clears and then derives again."""
    run = _run(lab, job)
    return run if None not in (run.get("uGPUcore"), run.get("nGPU")) else {}


def _free_while(lab: Lab, job: int) -> dict[str, int]:
    """Return the node's free GPUs by type while the job runs; {} while it does not run."""
    if lab.run_as("root", ["squeue", "-h", "-t", "R", "-j", str(job)]).stdout.strip() == "":
        return {}
    shown = json.loads(lab.run_as("root", ["slurm-gpu", "nodes", "--json"]).stdout)
    (node,) = shown["nodes"]
    return dict.fromkeys(node["gpus"], node["gpus_free"])
