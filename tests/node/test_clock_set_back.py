"""The wall clock is set during a job, and slurm-gpud restarts: no part of the run is lost."""

from pathlib import Path

import pytest

from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from tests.node.fakes import GIB, FakeClock, Work
from tests.node.machine import Machine, core
from tests.node.test_disturbances import StampedGpu


@pytest.mark.parametrize("step_s", [-86400, -60, -5, 60])
def test_segments_before_and_after_a_clock_step_are_not_double_watches(tmp_path: Path, step_s: float) -> None:
    clock = FakeClock()
    gpu = StampedGpu(clock)
    machine = Machine(tmp_path, gpu)
    machine.start()
    start = clock.now_s
    gpu.work = [Work(7, start, start + 200, 50, 20 * GIB)]
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 100)
    gpu.set_clock(step_s)
    machine.run_until(start + 105)
    machine.kill()
    clock.advance(1)
    machine.start()
    machine.run_until(start + 200)
    machine.hook("epilog", 7, "0")
    machine.run(3)
    kept, doubled = resolve_double_watches(machine.records(final=None))
    assert (len(kept), doubled) == (2, [])
    assert sum(record.sampled_s for record in kept) == pytest.approx(199, abs=15)
    for record in kept:
        assert core(record) == pytest.approx(50, abs=0.5)
