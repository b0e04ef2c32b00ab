"""Every field that a GPU reports is stored in the record of its job, from the reader to the spool."""

from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.node.gpu.reading import Activity, DeviceCounter
from slurm_gpu.wire import Window
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine

FACTS: dict[str, Any] = {
    "power_limit_w": 200.0,
    "sm_clock_max_mhz": 2000.0,
    "pcie_bytes_per_s": 10e9,
    "nvlink_bytes_per_s": 100e9,
}


class FurtherFields:
    """Additional fields of a GPU: links with constant rates, and a throttle reason."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.since_s, self.sampled_s = clock, 0.0, clock.now_s

    def __call__(self) -> dict[str, Any]:
        age_s = self.clock.now_s - self.since_s
        seconds, self.sampled_s = self.clock.now_s - self.sampled_s, self.clock.now_s
        return {
            "pcie_rx_bytes": DeviceCounter(round(4e9 * age_s) % 2**64),
            "pcie_tx_bytes": DeviceCounter(round(1e9 * age_s) % 2**64),
            "nvlink_rx_bytes": DeviceCounter(round(50e9 * age_s)),
            "nvlink_tx_bytes": DeviceCounter(round(50e9 * age_s)),
            "ecc_corrected": DeviceCounter(3),
            "throttle": ["sw_power_cap"],
            "activity": Activity(seconds, sm_active=0.5, sm_occupancy=0.25, tensor=0.125, dram=0.0),
        }


@pytest.fixture
def fields(gpu: FakeGpu, clock: FakeClock) -> FurtherFields:
    fields = FurtherFields(clock)
    gpu.more_facts, gpu.more_detail = FACTS, fields
    return fields


@pytest.fixture
def machine(fields: FurtherFields, tmp_path: Path, gpu: FakeGpu) -> Machine:
    """Return a node whose GPU had the given fields before slurm-gpud started."""
    machine = Machine(tmp_path, gpu)
    machine.start()
    return machine


def test_a_job_alone_on_a_gpu_has_all_reported_fields(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 30, 50, 10 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 30)
    assert machine.node is not None
    (window,) = machine.node.windows([7])
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.pcie_rx_bytes is not None
    assert record.pcie_rx_bytes.total == pytest.approx(4e9 * record.pcie_rx_bytes.seconds, rel=0.001)
    assert record.pcie_rx_bytes.seconds == pytest.approx(30, abs=0.1)
    assert record.pcie_tx_bytes is not None
    assert record.pcie_tx_bytes.total == pytest.approx(1e9 * record.pcie_tx_bytes.seconds, rel=0.001)
    assert record.nvlink_tx_bytes is not None
    assert record.ecc_corrected is not None
    assert record.ecc_corrected.total == 0  # the errors are older than the job
    assert record.ecc_uncorrected is None
    assert record.throttle_s is not None
    assert record.throttle_s["sw_power_cap"] == pytest.approx(30, abs=0.1)
    for name, value in (("sm_active", 0.5), ("sm_occupancy", 0.25), ("tensor", 0.125), ("dram", 0.0)):
        mean = getattr(record, f"{name}_frac")
        assert mean.mean == pytest.approx(value)
        assert mean.seconds == pytest.approx(30, abs=0.2)
    assert record.power_w is not None
    assert record.power_w.mean == pytest.approx(100, rel=0.001)

    assert record.timeline is not None
    levels = {"util": 0.5, "mem_used": 0.25, "sm_active": 0.5, "tensor": 0.125, "pcie": 0.25, "nvlink": 0.5}
    levels |= {"power": 0.5, "sm_clock": 0.7}
    assert set(record.timeline.series) == set(levels)
    for name, fraction in levels.items():
        inner = record.timeline.fractions(name)[1:29]
        assert inner == pytest.approx([fraction] * 28, abs=0.006), name
    seen = Window.from_wire(window)
    assert seen.values("util_pct")[5:25] == [50.0] * 20
    assert seen.values("pcie_rx_bytes_per_s")[5:25] == pytest.approx([4e9] * 20, rel=0.001)


def test_activity_of_a_shared_gpu_is_assigned_to_no_job(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 60, 30, 4 * GIB))
    gpu.work.append(Work(8, start + 20, start + 40, 30, 8 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 20)
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 40)
    machine.hook("epilog", 8, "0")
    machine.run_until(start + 60)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    seven, eight = machine.records()
    for name in (
        "power_w",
        "energy_j",
        "pcie_rx_bytes",
        "nvlink_rx_bytes",
        "ecc_corrected",
        "sm_active_frac",
    ):
        assert getattr(eight, name) is None, name
        # Only time alone on the GPU counts; the sampling interval at each change counts for no job.
        assert getattr(seven, name).seconds == pytest.approx(40, abs=2), name
    assert eight.throttle_s is not None
    assert eight.throttle_s["sw_power_cap"] == pytest.approx(20, abs=0.2)
    assert eight.sm_clock_mhz is not None
    assert eight.timeline is not None
    assert set(eight.timeline.series) == {"util", "mem_used", "sm_clock"}
    assert seven.timeline is not None
    assert seven.timeline.fractions("pcie")[25:35] == [None] * 10


def test_counters_of_a_gpu_that_was_lost_begin_again(
    machine: Machine, gpu: FakeGpu, fields: FurtherFields
) -> None:
    start = machine.clock.now_s
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 20)
    gpu.lost = True
    machine.run_until(start + 21)
    gpu.lost, fields.since_s = False, machine.clock.now_s - 1e9  # it returns with much larger counters
    machine.run_until(start + 60)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.pcie_rx_bytes is not None
    assert record.pcie_rx_bytes.total == pytest.approx(4e9 * record.pcie_rx_bytes.seconds, rel=0.001)
    assert 40 <= record.pcie_rx_bytes.seconds <= 59
