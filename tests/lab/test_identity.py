"""Test that GPUs are identified by UUID: Slurm's position, minor number and NVML's index may all differ."""

from __future__ import annotations

from functools import partial

import pytest

from lab import cgroups
from lab.cluster import Lab
from lab.options import JobSubmit, NodeGpus
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of

SHUFFLED = {
    "n1": NodeGpus(listed=(3, 1, 0, 2)),
    "n2": NodeGpus(minors=(4, 5, 6, 7), prefix="gpu"),
    "n3": NodeGpus(minors=(2, 0, 3, 1)),
    "n4": NodeGpus(minors=(7, 4, 6, 5), listed=(5, 4, 7, 6)),
}
WORK = """#!/bin/sh
for device in /dev/slurm-gpu-lab/$SLURMD_NODENAME/*; do
    (: <"$device") 2>&1 | grep -q 'No such device' && echo "$device"
done
simgpu --util 50 --mem-mib 4096 --seconds 4
"""


def test_the_gpus_that_a_job_opened_are_the_gpus_that_are_charged(lab_with: LabWith) -> None:
    lab = lab_with(gpus=SHUFFLED, job_submit=JobSubmit.NOOP)
    jobs = [(_submit(lab, node, gpus), gpus) for node in SHUFFLED for gpus in (1, 2, 1)]
    for job, gpus in jobs:
        recorded = wait_for(
            partial(_recorded, lab, job), 120, f"the records of job {job} arrive", interval_s=0.5
        )
        shares = lab.truth(job)
        assert len(shares) == gpus
        assert set(recorded) == {share.gpu.uuid for share in shares}
        if cgroups.probe().version is not cgroups.CgroupVersion.NONE:
            opened = (lab.layout.home / "alice" / f"opened-{job}").read_text().split()
            assert set(opened) == {str(share.gpu.file) for share in shares}
        for share in shares:
            allowed = 1.0 + share.unsure_points
            assert recorded[share.gpu.uuid] == pytest.approx(share.usage.util_pct, abs=allowed)
            assert share.usage.util_pct > 5


def _submit(lab: Lab, node: str, gpus: int) -> int:
    output = f"--output={lab.layout.home}/alice/opened-%j"
    return lab.submit("alice", f"-w{node}", f"--gpus={gpus}", "--time=10", output, script=WORK)


def _recorded(lab: Lab, job: int) -> dict[str, float]:
    """Return mean utilisation by UUID once the job has ended with final records, else {}."""
    for run in runs_of(lab, job):
        final = [device["final"] for device in run["devices"]]
        if run["state"] == "COMPLETED" and final == [True] * int(run["nGPU"] or 0):
            return {gpu["device"]: gpu["util_mean_pct"] for gpu in run["gpus"]}
    return {}
