"""Allocations begin and end by hooks, or by Slurm's reports if hooks were lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.node.fakes import GIB, FakeGpu, Work
from tests.node.machine import Machine, core, mem


def running(machine: Machine, **changed: Any) -> Mapping[int, Mapping[str, Any]]:
    """Return the `jobs` of an answer with job 7 on the GPU at position 0."""
    facts = {"restart": 0, "start_s": int(machine.clock.wall()) - 500, "uid": 1001, "state": "RUNNING"}
    return {7: {**facts, "gpu_index": {"gpu": [0]}, "granted_mgpu": 1000, "age_s": 0.5, **changed}}


def over(machine: Machine, ago_s: float, restart: int | None = 0) -> Mapping[int, Mapping[str, Any]]:
    return {7: {"restart": restart, "end_s": int(machine.clock.wall() - ago_s)}}


def test_a_job_older_than_the_daemon_is_recorded_once_slurm_has_reported_it(
    machine: Machine, gpu: FakeGpu
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start - 500, start + 500, 60, 10 * GIB))
    assert machine.node is not None
    machine.run(2)
    jobs = running(machine)
    machine.node.update_jobs(jobs)
    machine.run(10)
    assert machine.node.open_jobs() == []
    machine.node.update_jobs(jobs)
    assert machine.node.open_jobs() == [7]
    machine.run(30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert (record.device, record.restart, record.prolog_s) == ("GPU-0", 0, jobs[7]["start_s"])
    assert record.allocated_s == pytest.approx(30, abs=0.02)
    assert record.sampled_s == pytest.approx(30, abs=1)
    assert core(record) == pytest.approx(60, abs=1)
    assert record.granted_mgpu == 1000
    assert machine.events() == []


def test_a_job_in_its_prolog_begins_only_by_its_hook(machine: Machine) -> None:
    assert machine.node is not None
    for _ in range(3):
        machine.node.update_jobs(running(machine, in_prolog=True))
        machine.run(10)
    assert machine.node.open_jobs() == []


def test_a_prolog_after_slurm_s_report_belongs_to_the_same_run(machine: Machine) -> None:
    assert machine.node is not None
    machine.run(2)
    for _ in range(2):
        machine.node.update_jobs(running(machine))
        machine.run(10)
    machine.hook("prolog", 7, "0")
    machine.run(10)
    machine.hook("prolog", 7, "0", restart=1)  # this prolog is not lost
    machine.run(5)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(2)
    first, second = machine.records()
    assert first.allocated_s == pytest.approx(20, abs=0.1)
    assert second.allocated_s == pytest.approx(5, abs=0.1)
    assert machine.events() == ["epilog_missing"]
    assert machine.hook_files() == []


def test_an_answer_from_before_the_epilog_does_not_bring_the_job_back(machine: Machine) -> None:
    assert machine.node is not None
    machine.hook("prolog", 7, "0")
    machine.run(20)
    machine.hook("epilog", 7, "0")
    for _ in range(3):
        machine.run(10)
        machine.node.update_jobs(running(machine))
    assert machine.node.open_jobs() == []
    assert len(machine.records()) == 1


def test_an_older_answer_does_not_begin_a_job_with_only_an_epilog(machine: Machine) -> None:
    assert machine.node is not None
    machine.hook("epilog", 7, "0")
    for n in range(1, 4):
        machine.run(10)
        machine.node.update_jobs(running(machine, age_s=0.5 + 10 * n))
    assert machine.records(final=None) == []


@pytest.mark.parametrize("seen", [False, True])
def test_a_run_without_a_prolog_begins_even_if_the_previous_one_had_none(
    machine: Machine, *, seen: bool
) -> None:
    """Test a requeued job, whose epilog has the restart count of its next run."""
    assert machine.node is not None
    machine.run(5)
    if seen:  # the epilog of run 0, which began on this node
        machine.hook("prolog", 7, "0")
        machine.run(5)
        machine.hook("epilog", 7, "0", restart=1)
        machine.run(5)  # run 1 ends before Slurm's report of it is accepted
    machine.hook("epilog", 7, "0", restart=2)
    machine.run(2)
    for _ in range(4):
        machine.run(10)
        machine.node.update_jobs(running(machine, restart=2, start_s=int(machine.clock.wall()) - 10))
    assert machine.node.open_jobs() == [7]
    machine.run(20)
    machine.hook("epilog", 7, "0", restart=2)
    machine.run(3)
    assert [record.restart for record in machine.records()] == ([0, 2] if seen else [2])
    for _ in range(3):
        machine.run(10)
        machine.node.update_jobs(running(machine, restart=2, start_s=int(machine.clock.wall()) - 10))
    assert machine.node.open_jobs() == []


def test_a_lost_epilog_costs_at_most_the_last_checkpoint(machine: Machine, gpu: FakeGpu) -> None:
    """Test that the time until Slurm's report, two minutes after the end, is not charged to the job."""
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 300, 80, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 300)  # no epilog runs
    machine.run(130)
    assert machine.node is not None
    machine.node.end_jobs(over(machine, 130))
    machine.run(1)
    (record,) = machine.records()
    assert record.final
    assert record.allocated_s == pytest.approx(300, abs=1)
    assert record.last_s - record.first_s == pytest.approx(300, abs=1)
    assert 288 <= record.sampled_s <= 300
    assert core(record) == pytest.approx(80, abs=0.5)
    assert mem(record) == pytest.approx(50, abs=0.5)
    assert machine.events() == ["epilog_missing"]


def test_the_job_after_a_lost_epilog_is_alone_on_its_gpu_again(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 100, 80, 20 * GIB))
    gpu.work.append(Work(8, start + 110, start + 400, 30, 4 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 110)
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 230)
    assert machine.node is not None
    machine.node.end_jobs(over(machine, 130))
    machine.run_until(start + 400)
    machine.hook("epilog", 8, "0")
    machine.run(2)
    seven, eight = machine.records()
    assert core(seven) == pytest.approx(80, abs=0.5)
    assert seven.allocated_s == pytest.approx(100, abs=1.5)
    assert core(eight) == pytest.approx(30, abs=0.5)
    assert mem(eight) == pytest.approx(10, abs=0.5)
    assert eight.sampled_s == pytest.approx(290, abs=1)
    assert eight.power_w is not None
    assert eight.power_w.seconds == pytest.approx(170, abs=5)  # alone again


def test_an_epilog_after_slurm_s_report_changes_nothing(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(300)
    assert machine.node is not None
    machine.node.end_jobs(over(machine, 130))
    before = machine.records()
    machine.hook("epilog", 7, "0")
    machine.run(2)
    assert machine.records() == before
    assert machine.hook_files() == []


def test_the_end_of_an_earlier_run_does_not_close_the_current_one(machine: Machine) -> None:
    assert machine.node is not None
    machine.hook("prolog", 7, "0", restart=1)
    machine.run(300)
    machine.node.end_jobs(over(machine, 200, restart=0))
    machine.node.end_jobs(over(machine, 1000, restart=None))
    assert machine.node.open_jobs() == [7]
    assert machine.events() == []


def test_a_run_whose_end_and_successor_have_no_hooks_ends_where_the_next_begins(
    machine: Machine, gpu: FakeGpu
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 1000, 50, GIB))
    machine.hook("prolog", 7, "0")
    machine.run(200)
    next_run = running(machine, restart=1, start_s=int(machine.clock.wall()))
    assert machine.node is not None
    machine.node.update_jobs(next_run)
    machine.run(10)
    machine.node.update_jobs(next_run)
    machine.run(20)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(2)
    first, second = machine.records()
    assert (first.restart, second.restart) == (0, 1)
    assert first.allocated_s == pytest.approx(200, abs=1)
    assert second.allocated_s == pytest.approx(20, abs=0.1)
    assert machine.events() == ["epilog_missing"]


@pytest.mark.parametrize("seconds", [0.5, 2.5, 9.5])
def test_a_short_job_without_an_epilog_keeps_half_of_its_samples(
    machine: Machine, gpu: FakeGpu, seconds: float
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + seconds, 80, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run(140)
    (shipped,) = machine.records(final=False)
    assert machine.node is not None
    machine.node.end_jobs({7: {"restart": 0, "end_s": machine.clock.wall() - 140 + seconds}})
    (record,) = machine.records()
    assert record.seq > shipped.seq  # otherwise the record that is too long would remain
    assert record.allocated_s == pytest.approx(seconds, abs=0.1)
    assert seconds >= record.sampled_s >= (0 if seconds < 1 else 0.5 * seconds - 1.4)
    assert core(record) == (None if seconds < 1 else pytest.approx(80, abs=0.5))


def test_incomplete_reports_about_a_job_are_ignored(machine: Machine) -> None:
    assert machine.node is not None
    for facts in ({"gpu_index": "all"}, {"restart": "x"}, {"start_s": -1}, {"uid": None}, {"state": 7}):
        for _ in range(2):
            machine.node.update_jobs(running(machine, **facts))
            machine.run(10)
    assert machine.node.open_jobs() == [7]  # only the uid may be missing
    machine.node.end_jobs({7: {}, 8: {"end_s": 1}})
    assert machine.node.open_jobs() == [7]


def test_jobs_that_began_before_a_reboot_are_ignored(tmp_path: Path, gpu: FakeGpu) -> None:
    machine = Machine(tmp_path, gpu)
    gpu.clock.now_s = 20.0  # since boot
    machine.start()
    assert machine.node is not None
    before = running(machine, start_s=int(machine.clock.wall()) - 600)
    for _ in range(3):
        machine.node.update_jobs(before)
        machine.run(10)
    assert machine.node.open_jobs() == []


@pytest.mark.parametrize("odd", [1001, 4000, -1, 500.0, "500", True, [500], pytest.param(10**400, id="huge")])
def test_an_invalid_granted_share_is_ignored_and_logged_once(
    machine: Machine, caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    assert machine.node is not None
    machine.hook("prolog", 7, "0")
    for granted in (odd, odd, 500, odd):
        machine.run(10)
        machine.node.update_jobs(running(machine, granted_mgpu=granted))
        assert caplog.text.count("GPU share") == 1
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.granted_mgpu == 500


def test_the_granted_share_of_a_run_is_not_used_for_another(machine: Machine) -> None:
    assert machine.node is not None
    machine.hook("prolog", 7, "0")
    machine.node.update_jobs(running(machine, granted_mgpu=250))
    machine.run(10)
    machine.hook("epilog", 7, "0", restart=1)
    machine.hook("prolog", 7, "0", restart=1)
    machine.node.update_jobs(running(machine, granted_mgpu=250, age_s=1.5))  # of the previous run
    machine.run(5)
    machine.kill()
    machine.start()
    assert machine.node is not None
    machine.node.update_jobs(running(machine, granted_mgpu=500, restart=1))
    machine.hook("prolog", 7, "0", restart=2)
    machine.node.update_jobs(running(machine, granted_mgpu=500, restart=1))
    machine.run(5)
    machine.hook("epilog", 7, "0", restart=2)
    machine.run(3)
    granted = {(record.restart, record.granted_mgpu) for record in machine.records()}
    assert granted == {(0, 250), (1, 500), (2, None)}
