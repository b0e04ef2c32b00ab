"""Time suspended by `scontrol suspend` is counted separately, from sources that only root controls."""

from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from tests.node.fakeproc import write
from tests.node.fakes import GIB, FakeGpu, Work
from tests.node.machine import Machine, core, mem

JOB = JobName(7, 1001)


def freeze(mount: Path, *, frozen: bool, steps: tuple[str, ...] = ("step_batch", "step_0")) -> None:
    """Freeze each step but not the job's cgroup, as Slurm 22.05 does with cgroup v1."""
    job = mount / "freezer" / "slurm_n1" / "uid_1001" / "job_7"
    write(job / "freezer.state", "THAWED\n")
    for step in steps:
        write(job / step / "freezer.state", "FROZEN\n" if frozen else "THAWED\n")


def test_a_job_is_frozen_when_all_its_steps_are(tmp_path: Path) -> None:
    cgroups = JobCgroups("n1", tmp_path)
    assert cgroups.frozen(JOB) is None
    freeze(tmp_path, frozen=False)
    assert cgroups.frozen(JOB) is False
    freeze(tmp_path, frozen=True, steps=("step_batch",))
    assert cgroups.frozen(JOB) is False
    freeze(tmp_path, frozen=True)
    assert cgroups.frozen(JOB) is True


def test_a_job_is_frozen_when_all_its_steps_are_in_cgroup_v2(tmp_path: Path) -> None:
    write(tmp_path / "cgroup.controllers", "memory\n")
    job = tmp_path / "system.slice" / "slurmstepd.scope" / "job_7"
    write(job / "step_0" / "user" / "cgroup.freeze", "1\n")
    assert JobCgroups("n1", tmp_path).frozen(JOB) is True
    write(job / "step_1" / "user" / "cgroup.freeze", "0\n")
    assert JobCgroups("n1", tmp_path).frozen(JOB) is False


def test_a_suspended_job_is_charged_only_for_the_time_before_and_after(
    machine: Machine, gpu: FakeGpu
) -> None:
    start, cgroup = machine.clock.now_s, machine.directory / "cgroup"
    gpu.work.append(Work(7, start, start + 100, 80, 10 * GIB))
    gpu.work.append(Work(7, start + 160, start + 261, 80, 10 * GIB))
    gpu.work.append(Work(7, start + 100, start + 160, 0, 10 * GIB))
    freeze(cgroup, frozen=False)
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 100)
    freeze(cgroup, frozen=True)
    machine.run_until(start + 160)
    freeze(cgroup, frozen=False)
    machine.run_until(start + 260)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(260, abs=0.1)
    assert record.suspended_s is not None
    assert record.suspended_s == pytest.approx(60, abs=2.5)
    assert record.sampled_s == pytest.approx(200, abs=4)
    assert record.sampled_s + record.suspended_s <= 260.5
    assert core(record) == pytest.approx(80, abs=1.5)
    assert mem(record) == pytest.approx(25, abs=0.5)
    assert record.no_process_s == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize(("on_s", "off_s"), [(35.0, 23.0), (37.0, 29.0), (31.5, 31.5)])
def test_a_gang_scheduled_job_is_not_recorded_as_idle(
    machine: Machine, gpu: FakeGpu, on_s: float, off_s: float
) -> None:
    cgroup, slices = machine.directory / "cgroup", 10
    freeze(cgroup, frozen=False)
    machine.hook("prolog", 7, "0")
    for _ in range(slices):
        now = machine.clock.now_s
        gpu.work.append(Work(7, now, now + on_s, 80, 10 * GIB))
        gpu.work.append(Work(7, now + on_s, now + on_s + off_s, 0, 10 * GIB))
        machine.run_until(now + on_s)
        freeze(cgroup, frozen=True)
        machine.run_until(now + on_s + off_s)
        freeze(cgroup, frozen=False)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert core(record) == pytest.approx(80, abs=0.5)
    assert record.suspended_s == pytest.approx(slices * off_s, abs=2 * slices)
    assert record.sampled_s == pytest.approx(slices * on_s, abs=3 * slices)


def test_without_cgroups_suspension_comes_from_slurm(machine: Machine) -> None:
    def jobs(state: str) -> dict[int, dict[str, Any]]:
        facts = {"restart": 0, "start_s": int(machine.clock.wall()), "uid": 1001, "state": state}
        return {7: {**facts, "gpu_index": {"gpu": [0]}, "granted_mgpu": 1000, "age_s": 0.5}}

    assert machine.node is not None
    machine.hook("prolog", 7, "0")
    for state in ("RUNNING", "SUSPENDED", "SUSPENDED", "RUNNING"):
        machine.node.update_jobs(jobs(state))
        machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.suspended_s == pytest.approx(20, abs=2.5)


def test_suspension_without_a_source_is_a_gap(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.suspended_s is None
