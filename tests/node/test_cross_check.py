"""A process on a GPU that its job does not hold is told of, once, and nobody can flood the telling."""

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
    """Processes that a test made up."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[int, ProcessOrigin] = {}

    def origin(self, pid: int) -> ProcessOrigin | None:
        return self.origins.get(pid)


class Gpu:
    """One GPU, held by jobs; alice's job 7 holds another one, job 8 of bob none."""

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

    def told(self) -> list[tuple[str, int | None, Mapping[str, object]]]:
        self.spool.commit()
        items = self.spool.queue.waiting(10_000)
        return [(item.wire["kind"], item.wire.get("job_id"), item.wire["data"]) for item in items]


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    """A GPU that job 9, alice's, holds alone, on a node with cgroups."""
    gpu = Gpu(tmp_path, 9)
    gpu.process(100, 9)
    return gpu


def looked_at_twice(gpu: Gpu) -> list[tuple[str, int | None, Mapping[str, object]]]:
    gpu.check()
    gpu.check()
    return gpu.told()


def test_the_holder_s_processes_are_no_finding(gpu: Gpu) -> None:
    gpu.process(101, None, claimed=9)  # a container's, outside the job's cgroup
    assert looked_at_twice(gpu) == []


@pytest.mark.parametrize("job", [7, 8])
def test_a_process_of_a_job_that_does_not_hold_the_gpu_is_an_intruder(gpu: Gpu, job: int) -> None:
    gpu.process(101, job, BOB)
    assert looked_at_twice(gpu) == [("intruder", 9, {"pid": 101, "uid": BOB, "job": job})]
    gpu.check()
    assert len(gpu.told()) == 1


def test_a_process_of_no_job_is_an_intruder_where_a_job_holds_the_gpu(gpu: Gpu) -> None:
    gpu.process(101, None, BOB, claimed=9)  # not bob's job
    assert looked_at_twice(gpu) == [("intruder", 9, {"pid": 101, "uid": BOB, "job": None})]


def test_on_a_gpu_that_nobody_holds_only_jobs_intrude(tmp_path: Path) -> None:
    gpu = Gpu(tmp_path)
    gpu.process(101, None, BOB)
    gpu.process(102, 55, BOB)
    assert looked_at_twice(gpu) == []
    gpu.process(103, 7, BOB)
    assert looked_at_twice(gpu) == [("intruder", None, {"pid": 103, "uid": BOB, "job": 7})]


@pytest.mark.parametrize(
    ("uid", "program"),
    [(0, "nv-hostengine"), (998, None), (BOB, "nvidia-cuda-mps-server"), (BOB, "nvidia-cuda-mps-control")],
)
def test_services_are_no_intruders(gpu: Gpu, uid: int, program: str | None) -> None:
    gpu.process(101, None, uid, program=program)
    assert looked_at_twice(gpu) == []


def test_a_job_that_runs_as_root_has_no_such_licence(gpu: Gpu) -> None:
    gpu.process(101, 7, 0)
    assert looked_at_twice(gpu) == [("intruder", 9, {"pid": 101, "uid": 0, "job": 7})]


@pytest.mark.parametrize(("name", "job"), [(55, 55), ("s1A2B", "s1A2B")])
def test_a_cgroup_of_a_job_that_nobody_told_of_is_a_mismatch(
    gpu: Gpu, name: int | str, job: int | str
) -> None:
    gpu.owners[9] = JobOwner(ALICE, "s9")
    gpu.process(101, name, BOB)
    assert looked_at_twice(gpu) == [("job_mismatch", 9, {"pid": 101, "allocated": [9], "cgroup": job})]


def test_a_cgroup_by_sluid_may_be_that_of_a_holder_whose_sluid_nobody_told(gpu: Gpu) -> None:
    gpu.process(101, "s1A2B", BOB)
    assert looked_at_twice(gpu) == []


def test_what_is_seen_once_is_not_told(gpu: Gpu) -> None:
    gpu.process(101, 7)
    gpu.check()
    gpu.processes.origins.pop(101)
    gpu.check()
    gpu.process(101, 7)
    gpu.check()
    assert gpu.told() == []


def test_a_job_that_has_just_ended_may_take_a_minute_to_leave(gpu: Gpu) -> None:
    gpu.process(101, 55)
    gpu.ended[55] = gpu.clock.monotonic()
    for _ in range(11):
        gpu.check()
    assert gpu.told() == []
    gpu.check()
    gpu.check()
    assert gpu.told() == [("intruder", 9, {"pid": 101, "uid": ALICE, "job": 55})]


def test_another_process_with_the_same_id_is_another_intruder(gpu: Gpu) -> None:
    gpu.process(101, 7)
    looked_at_twice(gpu)
    gpu.process(101, 7, started=2)
    assert len(looked_at_twice(gpu)) == 2


def test_the_holder_s_own_user_is_no_intruder_outside_the_job_but_in_another_is(gpu: Gpu) -> None:
    gpu.process(101, None, ALICE)  # a container's, of a daemon
    gpu.process(102, 7, ALICE)
    assert looked_at_twice(gpu) == [("intruder", 9, {"pid": 102, "uid": ALICE, "job": 7})]


def test_of_one_job_only_so_much_is_told_in_an_hour_and_how_much_was_left_out(gpu: Gpu) -> None:
    for pid in range(200, 230):
        gpu.process(pid, 7)
    assert len(looked_at_twice(gpu)) == PER_HOUR
    gpu.process(300, 8)
    assert len(looked_at_twice(gpu)) == PER_HOUR + 1  # of others too
    gpu.check(3600)
    assert gpu.told()[-1] == ("intruder", None, {"of": "job 7", "left_out": 20})
    gpu.process(301, 7)
    gpu.check()
    gpu.check()
    assert gpu.told()[-1][2]["pid"] == 301


def test_many_jobs_together_flood_as_little(gpu: Gpu) -> None:
    for job in range(1000):
        gpu.process(1000 + job, 10_000 + job)
    assert len(looked_at_twice(gpu)) == ALL_PER_HOUR
    gpu.check(3600)
    assert gpu.told()[-1][2] == {"of": "others", "left_out": 900}
    assert len(gpu.told()) == ALL_PER_HOUR + 1
