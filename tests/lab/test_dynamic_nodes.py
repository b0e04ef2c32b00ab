"""Test that nodes missing from slurm.conf (`slurmd -Z`, `scontrol create`) are measured like all others."""

from __future__ import annotations

from lab.options import JobSubmit, NodeGpus
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.test_attribution import simgpu
from tests.lab.test_node import check

# Slurm, NVML and the minor numbers each order the GPUs differently.
GPUS = NodeGpus(minors=(2, 0, 3, 1), listed=(3, 1, 0, 2))
CREATED = "CPUs=32 RealMemory=100000 Gres=gpu:a100:4,shard:16 NodeAddr=127.0.0.1 State=CLOUD"


def test_jobs_on_a_dynamic_node_are_measured(lab_with: LabWith) -> None:
    lab = lab_with(nodes=2, gpus={"n2": GPUS}, job_submit=JobSubmit.NOOP, dynamic="n2")

    def two_jobs_are_measured() -> None:
        jobs = [
            lab.submit("alice", "-wn2", f"--gpus={n}", "--time=5", f"--wrap={simgpu(util)}")
            for n, util in ((1, 20), (2, 70))
        ]
        for job in jobs:
            check(lab, job)

    assert "DYNAMIC_NORM" in lab.output(["scontrol", "show", "node", "n2"])
    two_jobs_are_measured()
    matches = "4 GPUs of n2: each File= matches a GPU of the driver"
    wait_for(
        lambda: matches in lab.run_as("root", ["slurm-gpu", "doctor"], check=False).stdout,
        60,
        "doctor compares the GPUs of n2",
        interval_s=1,
    )
    wait_for(lambda: not lab.output(["squeue", "--noheader"]), 60, "n2 is empty")
    slurmd = lab.daemons["slurmd-n2"]
    slurmd.stop()
    lab.output(["scontrol", "delete", "NodeName=n2"])
    lab.output(["scontrol", "create", "NodeName=n2", *CREATED.split()])
    slurmd.start()
    lab.wait_until_idle_nodes()
    two_jobs_are_measured()
