"""GPU Performance Monitoring reports means between two samples, by schedules and factors."""

import pynvml
import pytest
from conftest import NvmlError

from lab.simgpu import faults
from lab.simgpu.load import Activity, Point
from lab.simgpu.specs import hopper
from lab.simgpu.truth import ProcessTruth, usage

UTIL = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
SM = pynvml.NVML_GPM_METRIC_SM_UTIL
OCCUPANCY = pynvml.NVML_GPM_METRIC_SM_OCCUPANCY
TENSOR = pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
DRAM = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
RATES = (
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
)


@pytest.fixture
def node(make_node):
    return make_node([hopper("GPU-h", minor=0), hopper("GPU-i", minor=1, gpm=False, nvlink_links=0)])


def sample(node, name, device=0):
    node.call("nvmlGpmSampleAlloc", None, keep=name)
    node.call("nvmlGpmSampleGet", device, {"kept": name}, keep=name)


def test_only_devices_with_gpm_support_it(node):
    assert node.call("nvmlGpmQueryDeviceSupport", 0)["isSupportedDevice"] == 1
    assert node.call("nvmlGpmQueryDeviceSupport", 1)["isSupportedDevice"] == 0
    with pytest.raises(NvmlError, match="NotSupported"):
        sample(node, "x", device=1)


def test_metrics_are_means_between_the_samples(node):
    node.work(0, (0, 50, 0), (10, 50, 0))
    node.now_s += 5
    sample(node, "a")
    node.now_s += 10  # half of it idle
    sample(node, "b")
    assert node.gpm("a", "b", UTIL, SM, OCCUPANCY, TENSOR, DRAM) == pytest.approx([25, 15, 10, 7.5, 15])
    mib_per_s = [2e9 / 4 / 2**20, 6e9 / 4 / 2**20, 20e9 / 4 / 2**20, 10e9 / 4 / 2**20]
    assert node.gpm("a", "b", *RATES) == pytest.approx(mib_per_s)


def test_an_unsupported_gpm_metric_fails_only_itself(node):
    sample(node, "a")
    node.now_s += 1
    sample(node, "b")
    assert node.gpm("a", "b", UTIL, pynvml.NVML_GPM_METRIC_FP64_UTIL, SM) == [0, None, 0]


def test_processes_differ_and_truth_agrees(node):
    now_ns = node.world.now_ns()
    points = (Point(now_ns, 30.0, 0.0), Point(now_ns + 20 * 10**9, 90.0, 0.0))
    truths = []
    for pid, activity in ((11, Activity(0.9, 0.5, 0.8, 0.1)), (12, Activity(0.1, 0.1, 0.0, 0.7))):
        node.world.register(0, points, pid, started=0, activity=activity)
        truths.append(ProcessTruth(pid, 0, "n1", "GPU-h", 80_000, pid, points, activity=activity))
    sample(node, "a")
    node.now_s += 20  # more than the device from the middle on
    sample(node, "b")
    begin_s = now_ns / 1e9
    true = usage(truths, job_id=11, uuid="GPU-h", start_s=begin_s, end_s=begin_s + 20)
    assert node.gpm("a", "b", SM, OCCUPANCY, TENSOR, DRAM) == pytest.approx(
        [100 * fraction for fraction in true.device_activity], rel=1e-6
    )
    assert true.activity.tensor == pytest.approx(0.8 * true.util_pct / 100)
    assert true.device_activity.tensor == pytest.approx(true.activity.tensor)


def test_samples_far_apart_count_what_is_long_over(node):
    sample(node, "a")
    for _ in range(100):
        node.work(0, (0, 100, 0), (0.5, 100, 0))
        node.now_s += 1
    sample(node, "b")
    assert node.world.content.slots_used < 30
    assert node.gpm("a", "b", UTIL, SM) == pytest.approx([50, 30])


@pytest.mark.parametrize("apart_s", [0, 0.05])
def test_samples_too_close_are_refused(node, apart_s):
    sample(node, "a")
    node.now_s += apart_s
    sample(node, "b")
    with pytest.raises(NvmlError, match="InvalidArgument"):
        node.gpm("a", "b", UTIL)


def test_samples_of_two_drivers_do_not_go_together(node, nvml):
    sample(node, "a")
    faults.driver(node.world, loaded=False)
    faults.driver(node.world, loaded=True)
    nvml.request(call="nvmlShutdown", args=[])
    nvml.request(world=str(node.path))
    node.now_s += 1
    sample(node, "b")
    with pytest.raises(NvmlError, match="InvalidArgument"):
        node.gpm("a", "b", UTIL)
