"""The wall clock is set while slurm-gpud is away, or between two runs: what lasted how long stays right."""

from pathlib import Path

import pytest

from slurm_gpu.database.steady import held_s
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core


@pytest.mark.parametrize("step_s", [-86400, -3600, -5, 5, 3600])
def test_a_job_that_began_before_is_held_since_its_prolog_by_the_clock_of_now(
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
    assert record.held_s == pytest.approx(30, abs=0.02)
    assert record.first_s == record.prolog_s == int(start + machine.clock.offset_s)
    assert record.last_s - record.first_s == pytest.approx(30, abs=1)
    assert core(record) == pytest.approx(50, abs=0.5)


def test_an_epilog_of_the_run_before_closes_no_run_that_began_after_it(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(15)
    epilog = machine.write_hook("epilog", 7, "0", restart=1)
    written = epilog.read_bytes()
    machine.clock.offset_s -= 3600
    machine.run(0.5)
    machine.hook("prolog", 7, "0", restart=1)
    machine.kill()
    epilog.write_bytes(written)  # as a kill leaves it that comes before the file is removed
    machine.start()
    machine.run(20)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert [(record.restart, round(record.held_s)) for record in machine.records()] == [(1, 20), (0, 15)]


def test_a_run_of_before_the_reboot_is_over_before_the_next_begins(tmp_path: Path, gpu: FakeGpu) -> None:
    """Its clock was ahead by an hour, and its files are still there."""
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
    held = {record.restart: round(record.held_s) for record in machine.records()}
    assert held == {0: 100, 1: 10}


@pytest.mark.parametrize("step_s", [-86400, -60, 0, 60, 86400])
def test_a_job_of_which_nothing_was_written_down_before_is_held_since_its_prolog_too(
    machine: Machine, step_s: float
) -> None:
    """slurm-gpud was killed in the job's first second: its records begin in the next process."""
    machine.run(0.7)  # from another second's end than the next process begins at
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
    assert (unseen.sampled_s, unseen.held_s) == (0, pytest.approx(10.5, abs=0.02))
    assert held_s([unseen, seen]) == pytest.approx(30.5, abs=0.02)
