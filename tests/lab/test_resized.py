"""Test that a job shrunk while it runs is one run, from its first start and with all nodes that it used."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from lab.simgpu import truth
from tests.lab.records import runs_of

WORK = """#!/bin/sh
other=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
srun --overlap -N1 -n1 -w "$other" simgpu --util 80 --mem-mib 4096 --seconds 4 &
exec simgpu --util 30 --mem-mib 8192 --seconds 250
"""


@pytest.mark.long
def test_a_job_that_shrinks_is_one_run_with_all_its_gpus(lab: Lab) -> None:
    job = lab.submit("alice", "-N2", "--gpus-per-node=1", "--time=5", "--mem=200M", script=WORK)
    wait_for(lambda: _n_worked(lab, job) == 1, 90, f"job {job} has worked on its other node")
    lab.output(["scontrol", "update", f"jobid={job}", "NumNodes=1"], user="alice")
    (released,) = wait_for(
        lambda: [interval for interval in lab.intervals(job) if interval.end_s], 60, "that is released"
    )
    wait_for(lambda: time.time() > (released.end_s or 0) + 6, 30, "the first works on alone")
    lab.output(["scancel", str(job)])
    wait_for(lambda: all(interval.end_s for interval in lab.intervals(job)), 60, "the job ends")

    run = wait_for(lambda: _whole_run(lab, job), 90, "it is recorded", lambda: str(runs_of(lab, job)), 0.5)
    shares = {share.gpu.uuid: share for share in lab.truth(job)}
    allocated_s = {uuid: share.end_s - share.start_s for uuid, share in shares.items()}
    assert min(allocated_s.values()) < max(allocated_s.values()) - 5, (
        "one node was released long before the other"
    )
    unsure_s = max(share.unsure_s for share in shares.values())
    assert {item["device"]: item["allocated_s"] for item in run["devices"]} == pytest.approx(
        allocated_s, abs=0.1 + unsure_s
    )
    busy = sum(share.usage.util_pct * allocated_s[uuid] for uuid, share in shares.items())
    assert run["uGPUcore"] == pytest.approx(busy / sum(allocated_s.values()), abs=1.0)
    assert run["coverage"] > 0.9
    # A device has an energy value only while it is allocated to one job.
    metered = [item["energy_j"] for item in run["devices"] if "energy_j" in item]
    if sum(seconds for seconds, _ in metered) >= 0.85 * sum(allocated_s.values()):
        assert run["energy_j"] == pytest.approx(sum(total for _, total in metered))

    rows = _accounting(lab, job)
    assert [row["State"].split()[0] for row in rows] == ["RESIZING", "CANCELLED"]
    assert (run["nodes"], run["nNODE"]) == (rows[0]["NodeList"], 2)
    assert (run["submit_s"], run["start_s"]) == (int(rows[0]["Submit"]), int(rows[0]["Start"]))
    assert run["end_s"] == int(rows[1]["End"])
    assert run["RUN_h"] == round((run["end_s"] - run["start_s"]) / 3600, 6)
    assert 0 <= run["WAIT_h"] <= run["SUBMIT_WAIT_h"] < 60 / 3600
    # The second row begins at the time of the resize: its submission time, not its start time.
    gpu_s = 2 * (int(rows[0]["End"]) - int(rows[0]["Start"])) + int(rows[1]["End"]) - int(rows[1]["Submit"])
    assert run["nGPU"] * run["RUN_h"] * 3600 == pytest.approx(gpu_s, rel=0.001)


def _n_worked(lab: Lab, job: int) -> int:
    """Return the number of the job's finished processes."""
    return sum(one.job_id == job and one.end_ns is not None for one in truth.load(lab.layout.truth))


def _whole_run(lab: Lab, job: int) -> dict[str, Any] | None:
    """Return the job's run once Slurm reports its end and both nodes' records are final, else None."""
    for run in runs_of(lab, job):
        final = [item for item in run["devices"] if item["final"]]
        if run["state"] == "CANCELLED" and len(final) == 2:
            return run
    return None


def _accounting(lab: Lab, job: int) -> list[dict[str, str]]:
    columns = ["State", "Submit", "Start", "End", "NodeList"]
    asked = ["sacct", "-D", "-X", "-n", "-P", "-j", str(job), f"--format={','.join(columns)}"]
    shown = lab.output(["env", "SLURM_TIME_FORMAT=%s", *asked])
    rows = [dict(zip(columns, line.split("|"), strict=True)) for line in shown.splitlines()]
    return sorted(rows, key=lambda row: int(row["Submit"]))
