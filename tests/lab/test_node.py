"""Test slurm-gpud with short jobs, several jobs on one GPU, and a database that hangs."""

from __future__ import annotations

import os
import random
import signal
from statistics import median
from typing import Any

import pytest

from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of

SEED = 20261121


def submit(lab: Lab, *options: str, work: str) -> int:
    return lab.submit("alice", "--time=5", "--mem=1G", *options, f"--wrap={work}")


def final_records(lab: Lab, job: int, count: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        # For the ID of an array or heterogeneous job, the command returns all tasks or components.
        of_job = [run for run in runs_of(lab, job) if run["job_id"] == job]
        final = [device for run in of_job for device in run["devices"] if device["final"]]
        return final if len(final) == count else []

    return wait_for(found, 120, f"job {job} has {count} final records", interval_s=0.5)


def check(lab: Lab, job: int) -> float:
    """Compare the records of a job with the truth; return the error of memory in percentage points."""
    wait_for(lambda: any(interval.end_s for interval in lab.intervals(job)), 120, f"job {job} ends")
    records = final_records(lab, job, len(lab.truth(job)))
    shares = {share.gpu.uuid: share for share in lab.truth(job)}
    worst = 0.0
    for record in records:
        share = shares[record["device"]]
        histogram = {int(percent): ms for percent, ms in record["util_hist_ms"].items()}
        core = sum(percent * ms for percent, ms in histogram.items()) / sum(histogram.values())
        assert core == pytest.approx(share.usage.util_pct, abs=1 + share.unsure_points), job
        assert record["allocated_s"] == pytest.approx(share.end_s - share.start_s, abs=0.1 + share.unsure_s)
        assert record["sampled_s"] == pytest.approx(record["allocated_s"], abs=0.1)
        off = 100 * abs(record["mem_used_frac"][1] - share.usage.mem_used_frac)
        assert off <= 1 + late_samples_pct(record), job
        worst = max(worst, off)
    return worst


def late_samples_pct(record: dict[str, Any]) -> float:
    """Return the allowed error of uGPUmem if the machine stalls while memory is allocated and freed.

    slurm-gpud samples memory itself, because the driver keeps no memory samples. A change counts from the
    middle between two samples at most half a second apart; the mean omits longer intervals.
    """
    seconds, _, _, highest = record["mem_used_frac"]
    unknown_s = 2 * 0.25 + record["allocated_s"] - seconds
    return float(100 * highest * unknown_s / record["allocated_s"])


def test_short_jobs_are_within_one_point_of_the_truth(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    dice = random.Random(SEED)
    jobs = []
    for _ in range(16):
        seconds = dice.uniform(2.5, 8)
        work = (
            f"simgpu --util {dice.randrange(101)} --mem-mib {dice.randrange(40000)} --seconds {seconds:.2f}"
        )
        jobs.append(submit(lab, "--gpus=1", work=work))
    # A stall of the machine may cause larger errors in some records; see late_samples_pct.
    assert median(check(lab, job) for job in jobs) <= 1


def test_each_of_several_jobs_on_one_gpu_has_its_own_share(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    on_one_gpu = ("-w", "n1", "--gres=shard:1")
    long = submit(lab, *on_one_gpu, work="exec simgpu --util 20 --mem-mib 3000 --seconds 250")
    wait_for_allocation(lab, long)
    others = [
        submit(lab, *on_one_gpu, work=f"simgpu --util {util} --mem-mib {mib} --seconds {seconds}")
        for util, mib, seconds in ((30, 9000, 6), (70, 2000, 5), (0, 500, 4))
    ]
    assert len({share.positions for job in (long, *others) for share in wait_for_allocation(lab, job)}) == 1
    for job in others:
        check(lab, job)
    lab.output(["scancel", str(long)])
    check(lab, long)


def wait_for_allocation(lab: Lab, job: int) -> list[Any]:
    return wait_for(lambda: lab.intervals(job), 60, f"job {job} starts")


def test_a_database_that_hangs_delays_no_sample(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    database = lab.daemons["slurm-gpudbd"]
    assert database.pid is not None
    first = submit(lab, "--gpus=1", work="simgpu --util 30 --seconds 2")
    os.kill(database.pid, signal.SIGSTOP)
    try:
        jobs = [submit(lab, "--gpus=1", work=f"simgpu --util {util} --seconds 4") for util in (10, 60)]
        wait_for(
            lambda: all(h.end_s for j in (first, *jobs) for h in wait_for_allocation(lab, j)), 90, "they end"
        )
    finally:
        os.kill(database.pid, signal.SIGCONT)
    for job in (first, *jobs):
        check(lab, job)
