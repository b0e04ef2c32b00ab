"""Test that kill -9 of any daemon at any moment loses no job's record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import yaml
from sqlalchemy import select

from lab.cluster import Lab
from lab.errors import LabError
from lab.options import JobSubmit
from lab.polling import wait_for
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run_device
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of

SEED = 20261121
JOBS = 30
SPAN_S = 60.0
KILLS = 3
"""The number of times that each daemon is killed."""


@dataclass(frozen=True)
class Step:
    at_s: float
    act: Callable[[], object]


def test_no_record_is_lost_when_daemons_are_killed_at_random_moments(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP)
    dice = random.Random(SEED)
    jobs: dict[int, int] = {}  # job ID → GPUs

    def submit(gpus: int, seconds: float) -> None:
        job_id = lab.submit(
            "alice",
            f"--gpus={gpus}",
            "--nodes=1",
            "--time=5",
            f"--wrap=simgpu --util {dice.randrange(101)} --mem-mib 2000 --seconds {seconds:.1f}",
        )
        jobs[job_id] = gpus

    steps = [
        Step(dice.uniform(0, SPAN_S), partial(submit, dice.choice((1, 1, 2)), dice.uniform(1, 8)))
        for _ in range(JOBS)
    ]
    for name in ["slurm-gpudbd", "mariadb", *(f"slurm-gpud-{node}" for node in lab.nodes)]:
        daemon = lab.daemons[name]
        for part in range(KILLS):  # at a random moment, for up to 8 s
            moment = dice.uniform(part, part + 0.5) * SPAN_S / KILLS
            steps += [
                Step(moment, daemon.kill9),
                Step(moment + dice.uniform(0.1, 8), partial(daemon.start, wait=False)),
            ]
    _play(steps)

    inside = _job_inside_an_outage(lab)
    for daemon in lab.daemons.values():
        daemon.start()

    lost_by_slurm = jobs.keys() - _accounted(lab, jobs.keys())
    assert len(lost_by_slurm) <= KILLS
    for job in lost_by_slurm:
        answer = lab.run_as("alice", ["slurm-gpu", "job", str(job)], check=False)
        assert f"accounting has no job {job}, but slurm-gpudbd has " in answer.stderr
    devices = {
        job: _unmatched_devices(lab, job) if job in lost_by_slurm else _wait_for_devices(lab, job, gpus)
        for job, gpus in jobs.items()
    }
    assert len(devices) == JOBS
    for job, found in devices.items():
        allocated = [
            (h.node, lab.nodes[h.node].at_position(p).uuid) for h in lab.intervals(job) for p in h.positions
        ]
        assert sorted({(d["node"], d["device"]) for d in found}) == sorted(allocated)
    (unseen,) = _wait_for_devices(lab, inside, 1)
    assert unseen["sampled_s"] == 0
    (inside_interval,) = lab.intervals(inside)
    assert inside_interval.end_s is not None
    assert abs(float(str(unseen["allocated_s"])) - (inside_interval.end_s - inside_interval.start_s)) < 0.5


def _job_inside_an_outage(lab: Lab) -> int:
    daemon = lab.daemons["slurm-gpud-n1"]
    daemon.kill9()
    job = lab.submit("alice", "-w", "n1", "--gpus=1", "--time=5", "--wrap=simgpu --util 50 --seconds 1")

    def ended() -> bool:
        intervals = lab.intervals(job)
        return bool(intervals) and intervals[0].end_s is not None

    wait_for(ended, 90.0, f"job {job} ends")
    daemon.start()
    return job


def _play(steps: list[Step]) -> None:
    start = time.monotonic()
    for step in sorted(steps, key=lambda step: step.at_s):
        wait_for(partial(_reached, start + step.at_s), SPAN_S, "the moment comes", interval_s=0.02)
        step.act()


def _reached(moment: float) -> bool:
    return time.monotonic() >= moment


def _accounted(lab: Lab, jobs: Set[int]) -> set[int]:
    """Return the jobs that are in Slurm's accounting a minute after all daemons run again.

    slurmdbd 24.11 loses a job if MariaDB is killed while it commits the job's row.
    """

    def found() -> set[int]:
        lines = lab.output(["sacct", "-X", "-n", "-P", "-a", "-S", "now-1hour", "-o", "JobIDRaw"]).split()
        return {int(line) for line in lines}

    with suppress(LabError):
        wait_for(lambda: found() >= jobs, 60.0, "Slurm's accounting has all jobs", interval_s=0.5)
    return found()


def _unmatched_devices(lab: Lab, job: int) -> list[dict[str, object]]:
    """Return the nodes and devices of a job's final records; the database has them even without a run."""
    database = Database(yaml.safe_load(lab.layout.database_file.read_text())["url"])
    of_job = select(run_device.c.node, run_device.c.device).where(
        run_device.c.job_id == job, run_device.c.final
    )
    with database.reading() as connection:
        found = [dict(row) for row in connection.execute(of_job).mappings()]
    database.dispose()
    return found


def _wait_for_devices(lab: Lab, job: int, gpus: int) -> list[dict[str, object]]:
    """Return a job's final records, one for each GPU, or more if its observation was interrupted."""

    def found() -> list[dict[str, object]]:
        devices = [device for run in runs_of(lab, job) for device in run["devices"]]
        last = {device["device"] for device in devices if device["final"]}
        return devices if len(last) == gpus else []

    def explain() -> str:
        """Return the job's nodes, records and accounting, and the last lines of the daemons' logs."""
        parts = [
            str(lab.intervals(job)),
            str(runs_of(lab, job)),
            lab.output(["sacct", "-X", "-P", "-j", str(job), "-o", "JobID,State,Start,End,NodeList"]),
        ]
        logs = sorted(lab.layout.log.glob("slurm-gpu*")) + sorted(lab.layout.log.glob("slurmd*"))
        for log in logs:
            lines = log.read_text(errors="replace").splitlines()
            parts += [f"== {log.name}", *lines[-60:]]
        return "\n".join(parts)

    return wait_for(found, 180.0, f"job {job} has the records of {gpus} GPUs", explain, interval_s=0.5)
