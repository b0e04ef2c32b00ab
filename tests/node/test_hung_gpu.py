"""A call that never returns affects only its own GPU, in the whole daemon with its real reader."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.simgpu import faults
from lab.simgpu.load import Point
from lab.simgpu.specs import GpuSpec
from slurm_gpu.clock import Clock
from slurm_gpu.node.gpu.reader_process import ReaderProcess
from slurm_gpu.node.gpu.reading import ReadRequest, Results
from slurm_gpu.node.measure.utilization import SAMPLE_MAX_S
from tests.node.machine import core
from tests.node.simulated import SimulatedMachine

DEADLINE_S = 0.2
REAL_S = 20.0


class StoppedReader(ReaderProcess):
    """A reader for a node whose clock is stopped while the reader process uses the real clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, deadline_s=DEADLINE_S, start_wait_s=REAL_S)

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        end_s = time.monotonic() + REAL_S
        while True:
            results = super().read(requests)
            if len(results.readings) + len(results.failures) == len(requests):
                break
            assert time.monotonic() < end_s
            time.sleep(0.005)
        at_s = self._clock.monotonic()
        readings = {uuid: reading._replace(at_s=at_s) for uuid, reading in results.readings.items()}
        return results._replace(readings=readings)


@pytest.fixture
def machine(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimulatedMachine]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    specs = [GpuSpec(f"GPU-{n}", minor=n) for n in range(2)]
    machine = SimulatedMachine(tmp_path, specs, nvml_library)
    reader = StoppedReader(machine.clock)
    machine.reader = reader  # type: ignore[assignment]
    yield machine
    machine.close()
    reader.close()


def event_at_s(machine: SimulatedMachine, kind: str) -> float:
    """Return the wall-clock time of the event."""
    assert machine.spool is not None
    (event,) = [item.wire for item in machine.spool.queue.waiting(100) if item.wire.get("kind") == kind]
    return float(event["at_s"])


def test_a_hung_gpu_costs_its_own_job_that_time_and_others_nothing(
    machine: SimulatedMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    machine.start()
    start = machine.clock.now_s
    for job, percent in ((7, 40.0), (8, 80.0)):
        begin_ns, end_ns = machine.clock.at_ns(start), machine.clock.at_ns(start + 1000)
        machine.work(job, 0, job - 7, [Point(begin_ns, percent, 8000), Point(end_ns, percent, 8000)])
        machine.hook("prolog", job, str(job - 7))
    machine.run_until(start + 30)
    faults.hang(machine.world, 1)
    machine.run_until(start + 50)
    assert machine.events() == ["gpu_hung"]
    faults.hang(machine.world, 1, [])
    end_s = time.monotonic() + REAL_S
    while "gpu_back" not in machine.events():
        # The retry is due by the fake clock, but its process takes real time.
        machine.run(10)
        assert time.monotonic() < end_s
        time.sleep(0.01)
    machine.run(40)
    after_s = machine.clock.wall() - event_at_s(machine, "gpu_back")
    for job in (7, 8):
        machine.hook("epilog", job, str(job - 7))
    machine.run(2)
    well, ill = machine.records()
    assert well.sampled_s == pytest.approx(well.allocated_s, abs=1.5)
    assert core(well) == pytest.approx(40, abs=1)
    assert ill.allocated_s == pytest.approx(well.allocated_s, abs=0.1)
    # The GPU is sampled until the last reading of its ring before the hang, and again from its return. The
    # first reading after the return contains one or two earlier samples of the ring.
    assert 20 <= ill.sampled_s - after_s <= 30 + SAMPLE_MAX_S
    assert core(ill) == pytest.approx(80, abs=1)
    assert machine.events() == ["gpu_hung", "gpu_back"]
    hung = [record for record in caplog.records if "GPU hung: GPU-1" in record.getMessage()]
    assert len(hung) == 1
