"""Test the effect of a process on power, links, clock and throttle reasons."""

import pynvml
import pytest

from lab.simgpu.load import Footprint
from lab.simgpu.specs import GpuSpec

THERMAL = pynvml.nvmlClocksEventReasonHwThermalSlowdown
NVLINK_KIB = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
ALL_LINKS = 0xFFFFFFFF
# A GPU on which a collective spins: fully utilised at low power.
SPINS = Footprint(power=0.4, pcie=0.5, nvlink=0.25, clock=0.7, reasons=THERMAL)


@pytest.fixture
def node(make_node):
    return make_node([GpuSpec("GPU-a", minor=0)])


def clock_mhz(node):
    return node.call("nvmlDeviceGetClockInfo", 0, pynvml.NVML_CLOCK_SM)


def reasons(node):
    return node.call("nvmlDeviceGetCurrentClocksEventReasons", 0)


def test_power_and_energy_are_by_the_factor_of_power(node):
    node.work(0, (0, 100, 0), (60, 100, 0), footprint=SPINS)
    before_mj = node.call("nvmlDeviceGetTotalEnergyConsumption", 0)
    node.now_s += 10
    drawn_mw = 55_000 + 0.4 * 345_000
    assert node.call("nvmlDeviceGetPowerUsage", 0) == drawn_mw
    assert node.samples(0, pynvml.NVML_TOTAL_POWER_SAMPLES)[-1][1] == drawn_mw
    used_mj = node.call("nvmlDeviceGetTotalEnergyConsumption", 0) - before_mj
    assert used_mj == pytest.approx(10 * drawn_mw, abs=2)
    assert node.call("nvmlDeviceGetUtilizationRates", 0)["gpu"] == 100


def test_each_of_two_processes_counts_by_its_own_factor(node):
    node.work(0, (0, 60, 0), (60, 60, 0), pid=11, footprint=SPINS)
    node.work(0, (0, 20, 0), (60, 20, 0), pid=12)
    node.now_s += 10
    assert node.call("nvmlDeviceGetPowerUsage", 0) == pytest.approx(
        55_000 + (0.4 * 0.6 + 0.2) * 345_000, abs=1
    )


def test_links_carry_by_their_factors(node):
    node.work(0, (0, 100, 0), (60, 100, 0), footprint=SPINS)
    node.now_s += 10
    assert node.call("nvmlDeviceGetPcieThroughput", 0, pynvml.NVML_PCIE_UTIL_RX_BYTES) == pytest.approx(
        0.5 * 6e9 / 1024, rel=1e-6
    )
    (field,) = node.call("nvmlDeviceGetFieldValues", 0, [[NVLINK_KIB, ALL_LINKS]])
    assert field["value"] == pytest.approx(10 * 0.25 * 20e9 / 1024, rel=1e-6)


def test_the_clock_is_throttled_with_its_reason_while_the_process_runs(node):
    node.work(0, (0, 100, 0), (60, 100, 0), pid=11)
    node.work(0, (10, 0, 0), (20, 0, 0), pid=12, footprint=SPINS)
    node.now_s += 5
    assert (clock_mhz(node), reasons(node)) == (1410, 0)
    node.now_s += 10
    assert (clock_mhz(node), reasons(node)) == (987, THERMAL)
    node.now_s += 10
    assert (clock_mhz(node), reasons(node)) == (1410, 0)
    ring = [value for _, value in node.samples(0, pynvml.NVML_PROCESSOR_CLK_SAMPLES)]
    assert (ring.count(987), ring.count(1410)) == (60, 60)


def test_no_clock_is_below_idle(node):
    node.work(0, (0, 100, 0), (60, 100, 0), footprint=Footprint(clock=0.0))
    node.now_s += 5
    assert clock_mhz(node) == 210
