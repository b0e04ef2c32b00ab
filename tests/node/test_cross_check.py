"""A process on a GPU that is not allocated to its job is reported once, at a limited rate."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_gpu.node.jobs.cross_check import ALL_PER_HOUR, PER_HOUR, Crosscheck, KnownJobs
from slurm_gpu.node.process.cgroup import CgroupJob, JobOwner
from slurm_gpu.node.process.process_jobs import ProcessJobs, ProcessOrigin
from slurm_gpu.node.shipping.events import EventRecorder
from slurm_gpu.node.shipping.spool import Spool
from tests.node.fakes import FakeClock

ALICE, BOB = 1001, 1002


class FewProcesses(ProcessJobs):
    """Processes defined by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[int, ProcessOrigin] = {}

    def origin(self, pid: int) -> ProcessOrigin | None:
        return self.origins.get(pid)


class Gpu:
    """One GPU, allocated to jobs; alice's job 7 has another GPU, bob's job 8 none."""

    def __init__(self, directory: Path, *allocated: int) -> None:
        self.clock, self.processes = FakeClock(), FewProcesses()
        self.spool = Spool(directory)
        self.checker = Crosscheck(self.processes, EventRecorder("n1", self.clock, self.spool))
        self.allocated = list(allocated)
        self.owners = {job: JobOwner(ALICE) for job in (7, *allocated)}
        self.ended: dict[int, float] = {}

    def process(
        self,
        pid: int,
        job: int | str | None = None,
        uid: int = ALICE,
        *,
        started: int = 1,
        claimed: int | None = None,
        program: str | None = None,
    ) -> None:
        cgroup = CgroupJob(job) if isinstance(job, int) else CgroupJob(sluid=job) if job else None
        self.processes.origins[pid] = ProcessOrigin(str(started).encode(), uid, cgroup, claimed, program)

    def check(self, seconds: float = 5.0) -> None:
        self.clock.advance(seconds)
        known = KnownJobs(owners=self.owners, without_gpus={8}, ended_s=self.ended.get)
        now_s = self.clock.monotonic()
        if self.checker.is_due("GPU-0", now_s):
            self.checker.check("GPU-0", list(self.processes.origins), self.allocated, known, now_s)

    def events(self) -> list[tuple[str, int | None, Mapping[str, object]]]:
        self.spool.commit()
        items = self.spool.queue.waiting(10_000)
        return [(item.wire["kind"], item.wire.get("job_id"), item.wire["data"]) for item in items]


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    """Return a GPU allocated only to alice's job 9, on a node with cgroups."""
    gpu = Gpu(tmp_path, 9)
    gpu.process(100, 9)
    return gpu


def checked_twice(gpu: Gpu) -> list[tuple[str, int | None, Mapping[str, object]]]:
    gpu.check()
    gpu.check()
    return gpu.events()


def test_processes_of_the_allocated_job_are_not_intruders(gpu: Gpu) -> None:
    gpu.process(101, None, claimed=9)  # in a container, outside the job's cgroup
    assert checked_twice(gpu) == []


@pytest.mark.parametrize("job", [7, 8])
def test_a_process_of_a_job_without_the_gpu_is_an_intruder(gpu: Gpu, job: int) -> None:
    gpu.process(101, job, BOB)
    assert checked_twice(gpu) == [("intruder", 9, {"pid": 101, "uid": BOB, "job": job})]
    gpu.check()
    assert len(gpu.events()) == 1


def test_a_process_without_a_job_is_an_intruder_on_an_allocated_gpu(gpu: Gpu) -> None:
    gpu.process(101, None, BOB, claimed=9)  # job 9 is not bob's
    assert checked_twice(gpu) == [("intruder", 9, {"pid": 101, "uid": BOB, "job": None})]


def test_only_jobs_intrude_on_an_unallocated_gpu(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    gpu.process(101, None, BOB)
    gpu.process(102, 55, BOB)
    assert checked_twice(gpu) == []
    gpu.process(103, 7, BOB)
    assert checked_twice(gpu) == [("intruder", None, {"pid": 103, "uid": BOB, "job": 7})]


@pytest.mark.parametrize(
    ("uid", "program"),
    [(0, "nv-hostengine"), (998, None), (BOB, "nvidia-cuda-mps-server"), (BOB, "nvidia-cuda-mps-control")],
)
def test_services_are_not_intruders(gpu: Gpu, uid: int, program: str | None) -> None:
    gpu.process(101, None, uid, program=program)
    assert checked_twice(gpu) == []


def test_a_process_of_a_job_that_runs_as_root_is_an_intruder(gpu: Gpu) -> None:
    gpu.process(101, 7, 0)
    assert checked_twice(gpu) == [("intruder", 9, {"pid": 101, "uid": 0, "job": 7})]


@pytest.mark.parametrize(("name", "job"), [(55, 55), ("s1A2B", "s1A2B")])
def test_a_cgroup_of_an_unknown_job_is_a_mismatch(gpu: Gpu, name: int | str, job: int | str) -> None:
    gpu.owners[9] = JobOwner(ALICE, "s9")
    gpu.process(101, name, BOB)
    assert checked_twice(gpu) == [("job_mismatch", 9, {"pid": 101, "allocated": [9], "cgroup": job})]


def test_a_cgroup_with_an_unknown_sluid_may_belong_to_the_allocated_job(gpu: Gpu) -> None:
    gpu.process(101, "s1A2B", BOB)
    assert checked_twice(gpu) == []


def test_a_process_seen_only_once_is_not_reported(gpu: Gpu) -> None:
    gpu.process(101, 7)
    gpu.check()
    gpu.processes.origins.pop(101)
    gpu.check()
    gpu.process(101, 7)
    gpu.check()
    assert gpu.events() == []


def test_a_job_that_has_just_ended_may_take_a_minute_to_leave(gpu: Gpu) -> None:
    gpu.process(101, 55)
    gpu.ended[55] = gpu.clock.monotonic()
    for _ in range(11):
        gpu.check()
    assert gpu.events() == []
    gpu.check()
    gpu.check()
    assert gpu.events() == [("intruder", 9, {"pid": 101, "uid": ALICE, "job": 55})]


def test_another_process_with_the_same_id_is_another_intruder(gpu: Gpu) -> None:
    gpu.process(101, 7)
    checked_twice(gpu)
    gpu.process(101, 7, started=2)
    assert len(checked_twice(gpu)) == 2


def test_the_job_s_user_is_an_intruder_only_in_another_job(gpu: Gpu) -> None:
    gpu.process(101, None, ALICE)  # in a container of a daemon
    gpu.process(102, 7, ALICE)
    assert checked_twice(gpu) == [("intruder", 9, {"pid": 102, "uid": ALICE, "job": 7})]


def test_events_of_one_job_are_limited_per_hour_and_omissions_counted(gpu: Gpu) -> None:
    for pid in range(200, 230):
        gpu.process(pid, 7)
    assert len(checked_twice(gpu)) == PER_HOUR
    gpu.process(300, 8)
    assert len(checked_twice(gpu)) == PER_HOUR + 1  # each job has its own limit
    gpu.check(3600)
    assert gpu.events()[-1] == ("intruder", None, {"of": "job 7", "left_out": 20})
    gpu.process(301, 7)
    gpu.check()
    gpu.check()
    assert gpu.events()[-1][2]["pid"] == 301


def test_events_of_many_jobs_are_limited_together(gpu: Gpu) -> None:
    for job in range(1000):
        gpu.process(1000 + job, 10_000 + job)
    assert len(checked_twice(gpu)) == ALL_PER_HOUR
    gpu.check(3600)
    assert gpu.events()[-1][2] == {"of": "others", "left_out": 900}
    assert len(gpu.events()) == ALL_PER_HOUR + 1
