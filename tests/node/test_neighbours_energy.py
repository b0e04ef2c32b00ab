"""Growth of a device's counters while a co-runner was present is charged to no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpu.node.gpu.reading import DeviceCounter
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine

IDLE_W, BUSY_W = 50.0, 400.0


@pytest.mark.parametrize("late_s", [0.0, 0.05, 0.9])
def test_a_late_epilog_does_not_add_the_co_runner_s_energy(tmp_path: Path, late_s: float) -> None:
    """End a co-runner between two detailed samples: only the last sample covers one job alone."""
    clock = FakeClock()
    gpu = FakeGpu(clock)
    machine = Machine(tmp_path, gpu)
    machine.start()
    begin, end = clock.now_s + 5, clock.now_s + 604.99
    busy_w = BUSY_W - IDLE_W
    gpu.energy_mj = lambda: DeviceCounter(
        round(1000 * (IDLE_W * clock.now_s + busy_w * max(0.0, min(clock.now_s, end) - begin)))
    )
    gpu.work.append(Work(2, begin, end, 100.0, 8 * GIB))
    machine.hook("prolog", 1, "0")
    machine.run(2)
    machine.hook("prolog", 2, "0", uid=1002)
    machine.run_until(end)
    seen_late = machine.write_hook("epilog", 2, "0", uid=1002)
    hidden = seen_late.with_name("." + seen_late.name)
    seen_late.rename(hidden)
    machine.run(late_s)
    hidden.rename(seen_late)
    machine.node.step()
    machine.due_s = machine.node.due_s()
    machine.run(60)
    machine.hook("epilog", 1, "0")
    machine.run(5)
    (idle,) = (record for record in machine.records() if record.job_id == 1)
    assert idle.energy_j is not None
    assert idle.energy_j.total / idle.energy_j.seconds == pytest.approx(IDLE_W, rel=0.02)
