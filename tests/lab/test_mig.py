"""Test that each MIG instance is a GPU in Slurm, and that a job is charged for its own instance."""

from __future__ import annotations

from functools import partial

import pytest

from lab import cgroups
from lab.cluster import Lab
from lab.options import JobSubmit, NodeGpus
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of
from tests.lab.test_node import late_samples_pct

CUT = NodeGpus(minors=(2, 0, 3, 1), mig={0: ("3g.20gb", "1g.5gb", "1g.5gb"), 3: ("7g.40gb",)})
WORK = """#!/bin/sh
cd /dev/slurm-gpu-lab/$SLURMD_NODENAME
for device in nvidia[0-9] nvidia-caps/*; do
    (: <"$device") 2>&1 | grep -q 'No such device' && echo "$device"
done
simgpu --util 50 --mem-mib 2048 --seconds 6
"""


def test_a_job_is_charged_for_its_own_instance(lab_with: LabWith) -> None:
    lab = lab_with(nodes=2, gpus={"n1": CUT}, job_submit=JobSubmit.NOOP)
    wanted = ("1g.5gb", "1g.5gb", "3g.20gb", "7g.40gb", "a100")
    jobs = {_submit(lab, kind): kind for kind in wanted}
    used = set()
    for job, kind in jobs.items():
        recorded = wait_for(
            partial(_recorded, lab, job), 120, f"the records of job {job} arrive", interval_s=0.5
        )
        (share,) = lab.truth(job)
        used.add(share.gpu.uuid)
        assert (share.gpu.slurm_type, list(recorded)) == (kind, [share.gpu.uuid])
        memory_frac, util_pct, late_pct = recorded[share.gpu.uuid]
        assert memory_frac == pytest.approx(share.usage.mem_used_frac, abs=0.01 + late_pct / 100)
        assert memory_frac > 0.02
        assert (
            util_pct is None if share.gpu.profile else util_pct == pytest.approx(share.usage.util_pct, abs=1)
        )
        if cgroups.probe().version is not cgroups.CgroupVersion.NONE:
            opened = (lab.layout.home / "alice" / f"mig-{job}").read_text().split()
            files = (share.gpu.file, *share.gpu.capabilities)
            assert {lab.layout.node("n1").devices / name for name in opened} == set(files)
    assert len(used) == len(wanted)


def _submit(lab: Lab, kind: str) -> int:
    output = f"--output={lab.layout.home}/alice/mig-%j"
    return lab.submit("alice", "-wn1", f"--gres=gpu:{kind}:1", "--mem=1G", "--time=5", output, script=WORK)


def _recorded(lab: Lab, job: int) -> dict[str, tuple[float, float | None, float]]:
    """Return the mean memory (0–1), mean utilisation and late_samples_pct by UUID once final, else {}."""
    for run in runs_of(lab, job):
        records = run["devices"]
        if run["state"] == "COMPLETED" and [record["final"] for record in records] == [True]:
            late_pct = late_samples_pct(records[0])
            return {
                gpu["device"]: (gpu["mem_mean_pct"] / 100, gpu["util_mean_pct"], late_pct)
                for gpu in run["gpus"]
            }
    return {}
