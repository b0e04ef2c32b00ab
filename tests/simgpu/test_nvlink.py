"""Test the properties and traffic of NVLink links."""

import pynvml
import pytest
from conftest import NvmlError

from lab.simgpu import faults
from lab.simgpu.specs import GpuSpec, hopper

ALL = 0xFFFFFFFF
TX, RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
LINK_TX, LINK_RX = pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES
COUNT, COMMON = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
SPEED, STATE, VERSION = 164, 165, 166


@pytest.fixture
def node(make_node):
    return make_node(
        [
            GpuSpec("GPU-a", minor=0),
            hopper("GPU-b", minor=1, nvlink_version=7, nvlink_mb_per_s=50_000),
            GpuSpec("GPU-c", minor=2, nvlink_links=0),
        ]
    )


def values(node, device, *ids):
    fields = node.call(
        "nvmlDeviceGetFieldValues", device, [list(one) if isinstance(one, tuple) else one for one in ids]
    )
    return [field["value"] if field["nvmlReturn"] == pynvml.NVML_SUCCESS else None for field in fields]


def test_the_maximum_of_links_is_reported(node):
    assert values(node, 0, COUNT, COMMON, (SPEED, 11), (STATE, 11), (VERSION, 11)) == [
        12,
        25_000,
        25_000,
        1,
        4,
    ]
    assert node.call("nvmlDeviceGetNvLinkState", 0, 11) == 1
    assert node.call("nvmlDeviceGetNvLinkVersion", 1, 0) == 7
    assert values(node, 0, (SPEED, 12)) == [None]
    with pytest.raises(NvmlError, match="InvalidArgument"):
        node.call("nvmlDeviceGetNvLinkState", 0, 12)


def test_bytes_are_counted_by_link_or_all_together(node):
    node.work(0, (0, 50, 0), (10, 50, 0))  # 10 GB/s out, 5 GB/s in
    node.now_s += 20
    assert values(node, 0, (TX, ALL), (RX, ALL)) == [100_000_000_000 // 1024, 50_000_000_000 // 1024]
    assert values(node, 0, TX, (TX, 11), (TX, 12)) == [100_000_000_000 // 1024 // 12] * 2 + [None]


def test_counters_of_the_fifth_generation_are_in_bytes(node):
    node.work(1, (0, 50, 0), (9, 50, 0))
    node.now_s += 20
    assert values(node, 1, (LINK_TX, 17), (LINK_RX, 0), (LINK_TX, 18)) == [5_000_000_000, 2_500_000_000, None]
    assert values(node, 0, LINK_TX) == [None]


def test_counters_wrap(node):
    node.work(0, (0, 50, 0), (10, 50, 0))
    faults.wrap(node.world, 0, left=2_000_000_000)
    assert values(node, 0, (TX, ALL)) == [(2**64 - 2_000_000_000) // 1024]
    node.now_s += 1
    assert values(node, 0, (TX, ALL), (RX, ALL)) == [8_000_000_000 // 1024, 3_000_000_000 // 1024]


def test_a_device_without_links_does_not_support_them(node):
    assert values(node, 2, COUNT, (TX, ALL), COMMON) == [None] * 3
    with pytest.raises(NvmlError, match="NotSupported"):
        node.call("nvmlDeviceGetNvLinkState", 2, 0)
