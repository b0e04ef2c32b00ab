"""A requeued job may run without a prolog; its cgroup shows the start and its epilog the GPUs."""

from pathlib import Path
from typing import Protocol

import pytest

from slurm_gpu.node.allocation.hooks import HookEvent, HookKind
from slurm_gpu.node.jobs.requeued import RequeuedJobs
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, fake_slurmd
from tests.node.test_lifecycle import running


class Change(Protocol):
    """Create or remove the cgroup of a job."""

    def __call__(self, there: bool, job_id: int = 7) -> None: ...


@pytest.fixture
def cgroup(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Return a function that creates or removes cgroups, whose ages follow the machine's clock."""
    created_s: dict[int, float] = {}

    def directory(job_id: int) -> Path:
        return machine.directory / "cgroup" / "freezer" / "slurm_n1" / "uid_1001" / f"job_{job_id}"

    def change(there: bool, job_id: int = 7) -> None:
        created_s[job_id] = machine.clock.wall()
        if there:
            directory(job_id).mkdir(parents=True)
        else:
            directory(job_id).rmdir()

    def age_s(cgroups: JobCgroups, job: JobName, wall_s: float) -> float | None:
        return wall_s - created_s[job.job_id] if directory(job.job_id).exists() else None

    monkeypatch.setattr(JobCgroups, "age_s", age_s)
    return change


def share(machine: Machine, gpu: FakeGpu) -> None:
    """Let several jobs share the GPU."""
    text = f"{fake_slurmd([gpu])(())}\nslurmd: Gres Name=shard Count=4 File=/nowhere/nvidia{gpu.minor} (null)"
    machine.slurmd = lambda command: text  # type: ignore[method-assign]
    machine.kill()
    machine.start()


def requeued(machine: Machine, cgroup: Change) -> None:
    """Run job 7 on position 0 for 5 s and requeue it."""
    cgroup(True)
    machine.hook("prolog", 7, "0")
    machine.run(5)
    machine.hook("epilog", 7, "0", restart=1)  # of the next run
    machine.run(0.5)
    cgroup(False)
    machine.run(11)


@pytest.mark.parametrize("can_be_shared", [False, True])
@pytest.mark.parametrize("seconds", [2.5, 6.0, 14.0])
def test_a_short_run_without_a_prolog_has_its_own_record(
    machine: Machine, gpu: FakeGpu, cgroup: Change, seconds: float, *, can_be_shared: bool
) -> None:
    if can_be_shared:
        share(machine, gpu)
    requeued(machine, cgroup)
    start = machine.clock.now_s + 0.4
    machine.run(0.4)
    cgroup(True)
    gpu.work.append(Work(7, start, start + seconds, 60, 10 * GIB))
    machine.run(seconds)
    cgroup(False)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    first, second = machine.records()
    assert (first.restart, second.restart) == (0, 1)
    assert second.allocated_s == pytest.approx(seconds, abs=0.05)
    assert second.sampled_s == pytest.approx(seconds, abs=0.4)
    assert core(second) == pytest.approx(60, abs=2)
    assert machine.events() == []
    assert machine.hook_files() == []


def test_usage_is_a_gap_next_to_another_possibly_running_job(
    machine: Machine, gpu: FakeGpu, cgroup: Change
) -> None:
    share(machine, gpu)
    machine.hook("prolog", 8, "0")
    cgroup(True, 8)
    machine.run(2)
    machine.hook("epilog", 8, "0", restart=1)
    requeued(machine, cgroup)
    cgroup(True)
    gpu.work.append(Work(7, machine.clock.now_s, machine.clock.now_s + 4, 60, 10 * GIB))
    machine.run(4)
    cgroup(False)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    record = next(record for record in machine.records() if record.restart == 1)
    assert (record.job_id, round(record.allocated_s), core(record)) == (7, 4, None)


def test_another_requeued_job_without_a_cgroup_is_not_running(
    machine: Machine, gpu: FakeGpu, cgroup: Change
) -> None:
    share(machine, gpu)
    machine.hook("prolog", 8, "0")
    cgroup(True, 8)
    machine.run(2)
    machine.hook("epilog", 8, "0", restart=1)
    cgroup(False, 8)  # the job may run on another node
    requeued(machine, cgroup)
    cgroup(True)
    gpu.work.append(Work(7, machine.clock.now_s, machine.clock.now_s + 4, 60, 10 * GIB))
    machine.run(4)
    cgroup(False)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    record = next(record for record in machine.records() if record.restart == 1)
    assert core(record) == pytest.approx(60, abs=5)


def test_a_search_for_cgroups_allows_for_passing_time(tmp_path: Path) -> None:
    class Ticking(FakeClock):
        def monotonic(self) -> float:
            self.now_s += 1e-4
            return super().monotonic()

    jobs = RequeuedJobs(JobCgroups("n1", tmp_path), Ticking())
    for job_id in (7, 8):
        jobs.expect(epilog(job_id))
    assert not jobs.may_run_with(7)
    (tmp_path / "freezer" / "slurm_n1" / "uid_1001" / "job_8").mkdir(parents=True)
    assert jobs.may_run_with(7)
    assert not jobs.may_run_with(8)


def epilog(job_id: int) -> HookEvent:
    return HookEvent(
        path=Path("epilog"),
        kind=HookKind.EPILOG,
        at_s=1.0,
        uptime_s=1.0,
        boot_id="b",
        job_id=job_id,
        restart=1,
        positions=(0,),
        uid=1001,
        cluster=None,
        node=None,
        sluid=None,
    )


def test_a_job_may_be_requeued_repeatedly(machine: Machine, cgroup: Change) -> None:
    requeued(machine, cgroup)
    for restart in (2, 3, 3):
        cgroup(True)
        machine.run(4)
        cgroup(False)
        machine.hook("epilog", 7, "0", restart=restart)
        machine.run(11)
    assert [record.restart for record in machine.records()] == [0, 1, 2, 3]
    assert [round(record.allocated_s) for record in machine.records()] == [5, 4, 4, 4]


def test_a_report_confirmed_by_a_cgroup_is_accepted_immediately(machine: Machine, cgroup: Change) -> None:
    assert machine.node is not None
    requeued(machine, cgroup)
    jobs = running(machine, restart=1, start_s=int(machine.clock.wall()))
    machine.node.update_jobs(jobs)
    assert machine.node.open_jobs() == []  # its prolog may be about to run
    cgroup(True)
    machine.run(3)
    machine.node.update_jobs(jobs)
    assert machine.node.open_jobs() == [7]
    machine.run(5)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert [round(record.allocated_s) for record in machine.records()] == [5, 8]


def test_a_prolog_takes_precedence_over_the_cgroup(machine: Machine, cgroup: Change) -> None:
    requeued(machine, cgroup)
    machine.hook("prolog", 7, "0", restart=1)
    machine.run(2)
    cgroup(True)
    machine.run(3)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert [round(record.allocated_s) for record in machine.records()] == [5, 5]


@pytest.mark.parametrize("has_cgroup", [True, False])
def test_a_run_with_an_unknown_start_is_an_event(machine: Machine, cgroup: Change, has_cgroup: bool) -> None:
    requeued(machine, cgroup)
    if has_cgroup:  # created and removed between two samples
        machine.clock.advance(0.3)
        cgroup(True)
        cgroup(False)
    machine.clock.advance(0.3)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert [record.restart for record in machine.records()] == [0]
    assert machine.events() == ["prolog_missing"]


def test_without_an_expected_job_no_cgroup_is_read(
    machine: Machine, cgroup: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    requeued(machine, cgroup)
    machine.run(700)

    def fails(cgroups: JobCgroups, job: JobName, wall_s: float) -> float | None:
        raise AssertionError

    monkeypatch.setattr(JobCgroups, "age_s", fails)
    machine.run(100)


def test_the_age_of_a_cgroup_counts_from_its_creation(tmp_path: Path) -> None:
    directory = tmp_path / "freezer" / "slurm_n1" / "uid_1001" / "job_7"
    cgroups = JobCgroups("n1", tmp_path)
    assert cgroups.age_s(JobName(7, 1001), 0.0) is None
    directory.mkdir(parents=True)
    assert cgroups.age_s(JobName(7, 1001), directory.stat().st_ctime + 5) == pytest.approx(5)
