"""slurm-gpud on real jobs: short ones, several on one GPU, and a database that hangs."""

from __future__ import annotations

import json
import os
import random
import signal
from typing import Any

import pytest

from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith

SEED = 20261121


def submit(lab: Lab, *options: str, work: str) -> int:
    return lab.submit("alice", "--time=5", "--mem=1G", *options, f"--wrap={work}")


def final_records(lab: Lab, job: int, count: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        shown = lab.run_as("carol", ["slurm-gpu", "job", str(job), "--json"], check=False)
        if shown.returncode != 0:
            return []
        # An array's number, or a heterogeneous job's, stands for all of its tasks or components.
        of_job = [run for run in json.loads(shown.stdout)["runs"] if run["job_id"] == job]
        final = [device for run in of_job for device in run["devices"] if device["final"]]
        return final if len(final) == count else []

    return wait_for(found, 60, f"job {job} has {count} final records", interval_s=0.5)


def check(lab: Lab, job: int) -> None:
    wait_for(lambda: any(held.end_s for held in lab.held(job)), 60, f"job {job} ends")
    shares = {share.gpu.uuid: share for share in lab.truth(job)}
    for record in final_records(lab, job, len(shares)):
        share = shares[record["device"]]
        histogram = {int(percent): ms for percent, ms in record["util_hist_ms"].items()}
        core = sum(percent * ms for percent, ms in histogram.items()) / sum(histogram.values())
        memory = 100 * record["mem_used_frac"][1]
        assert core == pytest.approx(share.usage.util_pct, abs=1), job
        assert memory == pytest.approx(100 * share.usage.mem_used_frac, abs=1), job
        assert record["held_s"] == pytest.approx(share.end_s - share.start_s, abs=0.1)
        assert record["sampled_s"] == pytest.approx(record["held_s"], abs=0.1)


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
    for job in jobs:
        check(lab, job)


def test_each_of_several_jobs_on_one_gpu_has_its_own_share(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    on_one_gpu = ("-w", "n1", "--gres=shard:1")
    long = submit(lab, *on_one_gpu, work="simgpu --util 20 --mem-mib 3000 --seconds 12")
    wait_for(lambda: lab.held(long), 20, "the first job starts")
    others = [
        submit(lab, *on_one_gpu, work=f"simgpu --util {util} --mem-mib {mib} --seconds {seconds}")
        for util, mib, seconds in ((30, 9000, 6), (70, 2000, 5), (0, 500, 4))
    ]
    assert len({share.positions for job in (long, *others) for share in wait_for_held(lab, job)}) == 1
    for job in (long, *others):
        check(lab, job)


def wait_for_held(lab: Lab, job: int) -> list[Any]:
    return wait_for(lambda: lab.held(job), 20, f"job {job} starts")


def test_a_database_that_hangs_delays_no_sample(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    database = lab.daemons["slurm-gpudbd"]
    assert database.pid is not None
    first = submit(lab, "--gpus=1", work="simgpu --util 30 --seconds 2")
    os.kill(database.pid, signal.SIGSTOP)
    try:
        jobs = [submit(lab, "--gpus=1", work=f"simgpu --util {util} --seconds 4") for util in (10, 60)]
        wait_for(lambda: all(h.end_s for j in (first, *jobs) for h in wait_for_held(lab, j)), 40, "they end")
    finally:
        os.kill(database.pid, signal.SIGCONT)
    for job in (first, *jobs):
        check(lab, job)
