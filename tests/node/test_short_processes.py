"""Processes that exit between two samples of a shared GPU are a gap and never recorded as 0."""

import pytest

from tests.node.fakes import GIB, FakeGpu, Work
from tests.node.machine import Machine, core

OLD_S, BUSY_S = 210.0, 60.0


def busy_with_short_processes(gpu: FakeGpu, job_id: int, start_s: float, percent: float) -> None:
    """Run consecutive processes, each shorter than the sampling interval, from OLD_S for BUSY_S."""
    for number in range(1, round(BUSY_S / 0.2) + 1):
        at_s = start_s + OLD_S + 0.2 * (number - 1)
        gpu.work.append(Work(job_id, at_s, at_s + 0.15, percent, 0, number))


def test_short_processes_on_a_shared_gpu_are_a_gap_for_all_its_jobs(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + OLD_S + BUSY_S, 20, GIB))
    busy_with_short_processes(gpu, 8, start, 70)
    machine.hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run_until(start + OLD_S + BUSY_S)
    machine.hook("epilog", 7, "0")
    machine.hook("epilog", 8, "0")
    machine.run(2)
    steady, hidden = machine.records()
    assert hidden.util_hist_ms is not None
    assert hidden.util_hist_ms[0] == pytest.approx(1000 * OLD_S, abs=2000)
    for record in (steady, hidden):
        assert record.allocated_s == pytest.approx(OLD_S + BUSY_S, abs=0.1)
        # slurm-gpud can attribute only processes that run during a sample.
        assert OLD_S - 1 <= record.sampled_s <= OLD_S + 0.3 * BUSY_S
    assert core(steady) == pytest.approx(20, abs=0.5)


def test_short_processes_of_a_job_alone_on_a_gpu_are_charged_to_it(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    busy_with_short_processes(gpu, 8, start, 70)
    machine.hook("prolog", 8, "0")
    machine.run_until(start + OLD_S + BUSY_S)
    machine.hook("epilog", 8, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.sampled_s == pytest.approx(OLD_S + BUSY_S, abs=0.5)
    assert core(record) == pytest.approx(gpu.mean(start, start + OLD_S + BUSY_S), abs=0.5)
