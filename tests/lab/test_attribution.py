"""Test that the GPU use of processes is attributed to their own job, for jobs of every kind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from lab import cgroups
from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from lab.simgpu import truth
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of
from tests.lab.test_node import check, final_records

SUSPENDED = """#!/bin/sh
# Not stopped by Slurm's first signal, which goes to its direct child alone, but when all are frozen.
(while :; do date +%s.%N; sleep 0.1; done >{stamps}) &
exec simgpu --util 70 --mem-mib 7000 --seconds 250
"""


@pytest.fixture
def lab(lab_with: LabWith) -> Iterator[Lab]:
    cluster = lab_with(job_submit=JobSubmit.NOOP)
    yield cluster
    cluster.cancel_all_jobs()


def simgpu(util: int, seconds: float = 6) -> str:
    return f"simgpu --util {util} --mem-mib {util * 100} --seconds {seconds}"


def test_every_shape_of_job_is_charged_with_its_own_work(lab: Lab) -> None:
    """Run in parallel on few GPUs: a pair on one node, a permutation, steps, an array, two components."""
    both = [
        lab.submit("alice", "-wn1", "--gpus=1", "--time=5", f"--wrap={simgpu(util)}") for util in (20, 80)
    ]
    turned = f"export CUDA_VISIBLE_DEVICES=1,0; simgpu --gpus 0 --util 90 --seconds 6 & {simgpu(10)}; wait"
    both.append(lab.submit("alice", "-wn1", "--gpus=2", "--time=5", f"--wrap={turned}"))
    steps = f"srun {simgpu(60, 3)}; srun {simgpu(30, 3)}"
    both.append(lab.submit("alice", "-wn2", "--gpus=1", "--time=5", f"--wrap={steps}"))
    array = lab.submit("bob", "-wn2", "--gpus=1", "--time=5", "--array=3,7", f"--wrap={simgpu(50)}")
    wait_for(lambda: len(lab.intervals(array)) == 1, 120, "the array begins")
    components = f"--wrap=srun --het-group=0,1 {simgpu(40)}"
    het = lab.submit(
        *("alice", "-wn3", "--gpus=1", "--time=5", ":", "-wn4", "--gpus=2", "--time=5", components)
    )

    for job in both:
        check(lab, job)
    tasks = wait_for(lambda: _ended(runs_of(lab, array), 2), 120, "both tasks are recorded", interval_s=0.5)
    assert {run["id"] for run in tasks} == {f"{array}_3", f"{array}_7"}
    for run in tasks:
        check(lab, run["job_id"])
    parts = wait_for(
        lambda: _ended(runs_of(lab, het), 2), 120, "both components are recorded", interval_s=0.5
    )
    assert {(run["id"], run["nodes"], len(run["devices"])) for run in parts} == {
        (f"{het}+0", "n3", 1),
        (f"{het}+1", "n4", 2),
    }
    for run in parts:
        # simgpu attributes all components to the first one, because SLURM_JOB_ID is its id in all of them.
        used = {device["device"]: max(map(int, device["util_hist_ms"])) for device in run["devices"]}
        assert used == {share.gpu.uuid: 40 for share in lab.truth(run["job_id"])}
    assert [event for run in (*tasks, *parts) for event in run["events"]] == []


def _ended(found: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the runs once there are `count` and all their GPUs have final records; [] until then."""
    done = [
        run
        for run in found
        if run["nGPU"] and [device["final"] for device in run["devices"]] == [True] * int(run["nGPU"])
    ]
    return done if len(done) == count else []


def of_job(lab: Lab, job: int) -> list[truth.ProcessTruth]:
    """Return the truth about the job's started processes."""
    return [process for process in truth.load(lab.layout.truth) if process.job_id == job]


def test_suspended_time_is_counted_apart(lab: Lab) -> None:
    if cgroups.probe().version is cgroups.CgroupVersion.NONE:
        pytest.skip("without cgroups only Slurm reports suspensions, every ten seconds")
    stamps = lab.layout.home / "alice" / "stamps"
    job = lab.submit("alice", "--gpus=1", "--time=5", script=SUSPENDED.format(stamps=stamps))
    (process,) = wait_for(lambda: of_job(lab, job), 60, "its process begins to work")
    # The job's idle start is then sampled, even without the samples around its suspension.
    began_s = process.points[0].time_ns / 1e9
    wait_for(lambda: time.time() > began_s + 4, 30, "it has worked for 4 s")
    lab.output(["scontrol", "suspend", str(job)])
    suspended_s = time.time()
    wait_for(lambda: time.time() > suspended_s + 12, 30, "it is suspended for 12 s")
    lab.output(["scontrol", "resume", str(job)])
    resumed_s = time.time()
    wait_for(lambda: float(stamps.read_text().split()[-1]) > resumed_s + 3, 60, "it works again for 3 s")
    lab.output(["scancel", str(job)])
    (record,) = final_records(lab, job, 1)
    interval_s = 3.0  # between samples: 2 s, or slightly more on a busy machine
    # The time between the samples around a change counts neither as running nor as stopped.
    unknown_s = 2 * interval_s
    times_s = [float(line) for line in stamps.read_text().split()]
    stopped_s = max(after - before for before, after in pairwise(times_s))
    assert stopped_s > 9  # Slurm freezes a job 2 s after SIGSTOP
    # A sample counts from the start of its pass, which may take long on a busy machine.
    assert stopped_s - unknown_s <= record["suspended_s"] <= stopped_s + 1.0
    reported_at_s = record["suspended_s"] + record["sampled_s"]
    assert record["allocated_s"] - unknown_s <= reported_at_s <= record["allocated_s"] + 0.01
    (did,) = wait_for(lambda: lab.truth(job), 60, "it has ended")
    (run,) = runs_of(lab, job)
    # The job's schedule continues while it is stopped, and would add at least 12 s of work if it counted.
    busy_s = sum(int(pct) * ms for pct, ms in record["util_hist_ms"].items()) / 70_000
    idle_s = (1 - did.usage.util_pct / 70) * record["allocated_s"]
    worked_s = record["allocated_s"] - stopped_s - idle_s
    neither_s = record["allocated_s"] - reported_at_s
    # The sample after its first work counts for the whole interval before it.
    assert worked_s - neither_s - interval_s <= busy_s <= worked_s + interval_s
    assert idle_s - neither_s - interval_s <= record["sampled_s"] - busy_s <= idle_s + interval_s
    assert record["no_process_s"] < idle_s + interval_s
    assert run["uGPUcore"] == pytest.approx(70 * busy_s / record["sampled_s"], abs=0.1)


def test_a_job_older_than_slurm_gpud_is_recorded_from_then_on(lab: Lab) -> None:
    daemon = lab.daemons["slurm-gpud-n1"]
    daemon.kill9()
    job = lab.submit("alice", "-wn1", "--gpus=2", "--time=5", f"--wrap=exec {simgpu(60, 250)}")
    wait_for(lambda: lab.intervals(job), 60, "the job begins")
    paths = lab.layout.node("n1")
    wait_for(lambda: list((paths.run / "jobs").glob(f"*-{job}-prolog")), 30, "its prolog file exists")
    for directory in (paths.run / "jobs", paths.state):
        shutil.rmtree(directory)
    start_s = time.time()
    daemon.start()
    # A running job's first record goes with the next live values.
    wait_for(
        lambda: [run for run in runs_of(lab, job) if run["devices"]], 90, "it is taken up", interval_s=0.5
    )
    seen_s = time.time()
    lab.output(["scancel", str(job)])
    records = final_records(lab, job, 2)
    (interval,) = lab.intervals(job)
    assert interval.end_s is not None
    assert {record["device"] for record in records} == {share.gpu.uuid for share in lab.truth(job)}
    processes = truth.load(lab.layout.truth)
    for record in records:
        # slurm-gpud queries Slurm every 10 s, and requires two equal results.
        assert interval.end_s - seen_s <= record["allocated_s"] <= interval.end_s - start_s - 9
        assert record["sampled_s"] == pytest.approx(record["allocated_s"], abs=0.2)
        mean = sum(int(pct) * ms for pct, ms in record["util_hist_ms"].items()) / 1000 / record["sampled_s"]
        since = {"start_s": interval.end_s - record["allocated_s"], "end_s": interval.end_s}
        did = truth.usage(processes, job_id=job, uuid=record["device"], **since)
        assert mean == pytest.approx(did.util_pct, abs=2)


def test_a_process_on_a_gpu_of_another_job_is_reported(lab: Lab) -> None:
    job = lab.submit("alice", "-wn1", "--gpus=1", "--time=5", f"--wrap=exec {simgpu(40, 250)}")
    (interval,) = wait_for(lambda: lab.intervals(job), 60, "the job begins")
    (position,) = interval.positions
    gpu = lab.nodes["n1"].at_position(position)
    visible = {"SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": gpu.uuid}
    with subprocess.Popen(
        ["setpriv", "--reuid=bob", "--clear-groups", "simgpu", "--util=30", "--seconds=250"],
        env=lab.environment_of("bob") | visible,
        cwd="/",
    ) as intruder:
        try:
            # Processes are checked every 5 s, and an intruder is logged after 5 s.
            log = lab.daemons["slurm-gpud-n1"].log
            line = f"intruder on {gpu.uuid}, allocated to job {job}"
            wait_for(lambda: line in log.read_text(), 60, "slurm-gpud logs it", interval_s=0.5)
        finally:
            intruder.send_signal(signal.SIGTERM)
            lab.output(["scancel", str(job)])
    final_records(lab, job, 1)
    uid = int(lab.output(["id", "-u", "bob"]))
    events = wait_for(
        lambda: [event for run in runs_of(lab, job) for event in run["events"]], 90, "the event arrives"
    )
    assert [(event["kind"], event["device"], event["data"]) for event in events] == [
        ("intruder", gpu.uuid, {"pid": intruder.pid, "uid": uid, "job": None})
    ]
