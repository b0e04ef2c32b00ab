"""The wall clock is set while slurm-gpud is down, or between two runs: durations remain right."""

import logging
from pathlib import Path

import pytest

from slurm_gpu.database.accounting.steady_clock import allocated_s
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core
from tests.node.test_disturbances import StampedGpu


@pytest.mark.parametrize("step_s", [-86400, -3600, -5, 5, 3600])
def test_a_clock_set_after_the_prolog_keeps_the_allocated_time(
    machine: Machine, gpu: FakeGpu, step_s: float
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 30, 50, GIB))
    machine.kill()
    machine.write_hook("prolog", 7, "0")
    machine.clock.advance(5)
    machine.clock.offset_s += step_s
    machine.clock.advance(5)
    machine.start()
    machine.run_until(start + 30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(30, abs=0.02)
    assert record.first_s == record.prolog_s == int(start + machine.clock.offset_s)
    assert record.last_s - record.first_s == pytest.approx(30, abs=1)
    assert core(record) == pytest.approx(50, abs=0.5)


def test_an_epilog_of_the_previous_run_does_not_close_the_next(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(15)
    epilog = machine.write_hook("epilog", 7, "0", restart=1)
    written = epilog.read_bytes()
    machine.clock.offset_s -= 3600
    machine.run(0.5)
    machine.hook("prolog", 7, "0", restart=1)
    machine.kill()
    epilog.write_bytes(written)  # as if slurm-gpud was killed before it removed the file
    machine.start()
    machine.run(20)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert [(record.restart, round(record.allocated_s)) for record in machine.records()] == [(1, 20), (0, 15)]


def test_a_run_from_before_a_reboot_ends_before_the_next_begins(tmp_path: Path, gpu: FakeGpu) -> None:
    """Set the clock an hour ahead before the reboot, and keep the hook files."""
    machine = Machine(tmp_path, gpu)
    machine.write_hook("prolog", 7, "0")
    machine.clock.advance(100)
    machine.write_hook("epilog", 7, "0", restart=1)
    machine.clock = gpu.clock = FakeClock("boot-2", monotonic_s=20.0)
    machine.clock.offset_s -= 3600
    machine.write_hook("prolog", 7, "0", restart=1)
    machine.start()
    machine.run(10)
    assert machine.node is not None
    assert machine.node.open_jobs() == [7]
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    allocated = {record.restart: round(record.allocated_s) for record in machine.records()}
    assert allocated == {0: 100, 1: 10}


@pytest.mark.parametrize("step_s", [-86400, -60, 0, 60, 86400])
def test_a_kill_in_the_first_second_of_a_job_keeps_its_allocated_time(
    machine: Machine, step_s: float
) -> None:
    """Test that only the samples are lost, not the start of the job."""
    machine.run(0.7)  # the next slurm-gpud starts at another fraction of a second
    machine.hook("prolog", 7, "0")
    machine.run(0.5)
    machine.kill()
    machine.clock.advance(10)
    machine.clock.offset_s += step_s
    machine.start()
    machine.run(20)
    machine.hook("epilog", 7, "0")
    machine.run(3)
    unseen, seen = sorted(machine.records(final=None), key=lambda record: record.uptime_s or 0)
    assert (unseen.sampled_s, unseen.allocated_s) == (0, pytest.approx(0, abs=0.02))
    assert allocated_s([unseen, seen]) == pytest.approx(30.5, abs=0.02)


def _utilization_of_a_job_in_an_outage(
    directory: Path, steps: dict[float, float], *, prolog_s: float
) -> tuple[float | None, float]:
    """Return the recorded utilisation of a job that used 80 %, and the sampled seconds.

    slurm-gpud is down from 0 s to 16 s, the job runs from `prolog_s` to 26 s, and `steps` maps the times of
    clock steps to their seconds.
    """
    gpu = StampedGpu(FakeClock())
    machine = Machine(directory, gpu)
    machine.start()
    machine.run(10)
    machine.kill()
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + prolog_s, start + 26, 80, GIB))
    for at_s, step_s in sorted([*steps.items(), (prolog_s, 0.0)]):
        machine.run_until(start + at_s)
        gpu.set_clock(step_s)
        if at_s == prolog_s:
            machine.write_hook("prolog", 7, "0")
    machine.run_until(start + 16)
    machine.start()
    machine.run_until(start + 26)
    machine.hook("epilog", 7, "0")
    machine.run(3)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(26 - prolog_s, abs=0.05)
    return core(record), record.sampled_s


@pytest.mark.parametrize("prolog_s", [3, 7])
@pytest.mark.parametrize("step_s", [-239.9, -15.31, -4.2, -1.53, 1.53, 15.31, 239.9])
def test_driver_samples_stamped_by_a_different_clock_are_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step_s: float, prolog_s: float
) -> None:
    """Test that earlier activity is not counted, whether the clock is set before or after the start."""
    percent, sampled_s = _utilization_of_a_job_in_an_outage(tmp_path, {5: step_s}, prolog_s=prolog_s)
    assert percent == pytest.approx(80, abs=0.5)
    assert sampled_s == pytest.approx(10, abs=0.3)
    assert sum("the driver's earlier samples" in message for message in caplog.messages) == 1


def test_a_hook_reveals_a_clock_step_that_was_undone(tmp_path: Path) -> None:
    steps = {5.0: -9.7, 12.0: 9.7}
    percent, sampled_s = _utilization_of_a_job_in_an_outage(tmp_path, steps, prolog_s=7)
    assert percent == pytest.approx(80, abs=0.5)
    assert sampled_s == pytest.approx(10, abs=0.3)


def test_without_a_clock_step_driver_samples_cover_the_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    percent, sampled_s = _utilization_of_a_job_in_an_outage(tmp_path, {}, prolog_s=7)
    assert percent == pytest.approx(80, abs=0.5)
    assert sampled_s == pytest.approx(19, abs=0.2)
    assert caplog.messages == []


@pytest.mark.parametrize("step_s", [-15.31, 15.31])
def test_a_clock_step_during_an_outage_is_an_event(machine: Machine, step_s: float) -> None:
    machine.run(10)
    machine.kill()
    machine.clock.offset_s += step_s
    machine.clock.advance(5)
    machine.start()
    assert machine.events() == ["clock_step"]
    assert machine.event_data() == [{"seconds": pytest.approx(step_s, abs=0.01)}]


def test_the_clock_offset_of_another_boot_is_ignored(tmp_path: Path, gpu: FakeGpu) -> None:
    machine = Machine(tmp_path, gpu)
    machine.start()
    machine.kill()
    machine.clock = gpu.clock = FakeClock("boot-2", monotonic_s=20.0)
    machine.start()
    machine.run(3)
    assert machine.events() == []


@pytest.mark.parametrize("kept", ["rubbish", None, {"boot_id": "boot-1"}, {"boot_id": 1, "ahead_s": "2"}])
def test_an_unreadable_stored_clock_is_ignored(machine: Machine, kept: object) -> None:
    machine.run(10)
    assert machine.spool is not None
    machine.spool._journal.put("clock", kept)
    machine.spool.commit()
    machine.kill()
    machine.start()
    machine.run(3)
    assert machine.events() == []
