"""A driver may report each process once, with its own stamp and its mean since the last query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.node.gpu.reading import ProcessSample
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core


class SparseGpu(FakeGpu):
    """A GPU modelled on published outputs of nvmlDeviceGetProcessUtilization, not on hardware."""

    def process_samples(self, after_us: int) -> Sequence[ProcessSample] | None:
        by_pid: dict[int, list[ProcessSample]] = {}
        every = super().process_samples(after_us) or ()
        ticks = len({sample.at_us for sample in every})
        for sample in every:
            by_pid.setdefault(sample.pid, []).append(sample)
        return [
            ProcessSample(pid, of[-1].at_us, float(round(sum(sample.percent for sample in of) / ticks)))
            for pid, of in by_pid.items()
        ]


@pytest.mark.parametrize("turn_s", [0.5, 2.5, 7.0])
def test_jobs_that_alternate_are_both_charged_their_own_use(tmp_path: Path, turn_s: float) -> None:
    """Test two stamps per query; if they were ring samples, the job with the older one would appear idle."""
    clock = FakeClock()
    gpu = SparseGpu(clock)
    machine = Machine(tmp_path, gpu)
    machine.start()
    start = clock.now_s
    for turn in range(round(140 / (2 * turn_s)) + 1):
        first_s = start + 2 * turn * turn_s
        gpu.work.append(Work(1, first_s, first_s + turn_s, 60.0, GIB))
        gpu.work.append(Work(2, first_s + turn_s, first_s + 2 * turn_s, 40.0, GIB))
    machine.hook("prolog", 1, "0")
    machine.hook("prolog", 2, "0", uid=1002)
    machine.run_until(start + 140)
    machine.hook("epilog", 1, "0")
    machine.hook("epilog", 2, "0", uid=1002)
    machine.run(5)
    first, second = sorted(machine.records(), key=lambda record: record.job_id)
    assert core(first) == pytest.approx(30, abs=0.5)
    assert core(second) == pytest.approx(20, abs=0.5)
