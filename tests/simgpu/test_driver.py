"""Errors are reported once, and the driver can be reloaded under a running client."""

import time

import pynvml
import pytest
from conftest import START, NvmlError

from lab.simgpu import faults
from lab.simgpu.errors import RequestError

XID = pynvml.nvmlEventTypeXidCriticalError
ENERGY, PCIE_TX, NVLINK_TX = 83, 197, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX


def listen(node, name, *devices):
    node.call("nvmlEventSetCreate", None, keep=name)
    for device in devices:
        node.call("nvmlDeviceRegisterEvents", device, XID, {"kept": name})


def wait(node, name, timeout_ms=0):
    event = node.call("nvmlEventSetWait_v2", None, {"kept": name}, timeout_ms)
    assert event["eventType"] == XID
    return event["device"], event["eventData"]


def nothing(node, name, timeout_ms=0):
    with pytest.raises(NvmlError, match="Timeout"):
        wait(node, name, timeout_ms)
    return True


class TestXids:
    def test_each_event_set_receives_later_errors_once(self, node):
        faults.xid(node.world, 1, 13)
        listen(node, "both", 0, 1)
        listen(node, "one", 1)
        assert nothing(node, "both")
        faults.xid(node.world, 1, 48)
        faults.xid(node.world, 0, 79)
        faults.xid(node.world, 2, 31)
        assert [wait(node, "both"), wait(node, "both")] == [(1, 48), (0, 79)]
        assert nothing(node, "both")
        assert wait(node, "one") == (1, 48)
        assert nothing(node, "one")
        faults.xid(node.world, 1, 48)
        assert wait(node, "one") == (1, 48)
        node.call("nvmlEventSetFree", None, {"kept": "both"})

    def test_an_error_may_come_from_an_instance(self, node):
        listen(node, "set", 0)
        faults.xid(node.world, 0, 13, gpu_instance=7)
        faults.xid(node.world, 0, 13)
        events = [node.call("nvmlEventSetWait_v2", None, {"kept": "set"}, 0) for _ in range(2)]
        assert [event["gpuInstanceId"] for event in events] == [7, 0xFFFFFFFF]

    def test_a_wait_lasts_for_its_timeout(self, node):
        listen(node, "set", 0)
        began = time.perf_counter()
        assert nothing(node, "set", 60)
        assert time.perf_counter() - began >= 0.06

    def test_the_newest_of_many_events_are_kept(self, node):
        listen(node, "set", 0)
        for code in range(100):
            faults.xid(node.world, 0, code)
        codes = [wait(node, "set")[1] for _ in range(64)]
        assert codes == list(range(36, 100))
        assert nothing(node, "set")

    def test_a_lost_gpu_is_reported_after_its_errors(self, node):
        listen(node, "set", 0, 1)
        faults.xid(node.world, 1, 79)
        faults.lose(node.world, 1)
        assert wait(node, "set") == ("lost", 79)
        with pytest.raises(NvmlError, match="GpuIsLost"):
            wait(node, "set")

    def test_only_supported_event_types_can_be_registered(self, node):
        supported = node.call("nvmlDeviceGetSupportedEventTypes", 0)
        assert supported & XID
        node.call("nvmlEventSetCreate", None, keep="set")
        with pytest.raises(NvmlError, match="NotSupported"):
            node.call("nvmlDeviceRegisterEvents", 0, pynvml.nvmlEventTypePState, {"kept": "set"})


@pytest.fixture
def again(node, nvml):
    """Initialise NVML again."""

    def initialise():
        nvml.request(call="nvmlShutdown", args=[])
        nvml.request(world=str(node.path))

    return initialise


class TestReload:
    def test_clients_must_initialise_again_after_a_reload(self, node, again):
        faults.driver(node.world, loaded=False)
        for _ in range(2):
            with pytest.raises(NvmlError, match="Uninitialized"):
                node.call("nvmlDeviceGetPowerUsage", 0)
            with pytest.raises(NvmlError, match="Uninitialized"):
                node.call("nvmlDeviceGetCount")
            faults.driver(node.world, loaded=True)
        again()
        assert node.call("nvmlDeviceGetPowerUsage", 0) == 55_000

    def test_a_second_init_alone_does_not_help(self, node, nvml):
        faults.driver(node.world, loaded=False)
        faults.driver(node.world, loaded=True)
        nvml.request(world=str(node.path))
        with pytest.raises(NvmlError, match="Uninitialized"):
            node.call("nvmlDeviceGetCount")
        nvml.request(call="nvmlShutdown", args=[])

    def test_a_reload_resets_counters_and_work_continues(self, node, again):
        node.work(0, (0, 100, 1000), (100, 100, 1000))
        faults.wrap(node.world, 0)
        node.now_s += 10
        faults.driver(node.world, loaded=False)
        node.now_s += 10
        faults.driver(node.world, loaded=True)
        again()
        node.now_s += 10
        values = node.call("nvmlDeviceGetFieldValues", 0, [ENERGY, PCIE_TX, [NVLINK_TX, 0xFFFFFFFF]])
        assert [field["value"] for field in values] == [4_000_000, 20_000_000_000, 200_000_000_000 // 1024]
        stamps = [stamp for stamp, _ in node.samples(0, pynvml.NVML_GPU_UTILIZATION_SAMPLES)]
        assert stamps[0] > (START + 120) * 1e6

    def test_errors_are_counted_since_the_driver_was_loaded_and_ever(self, node, again):
        faults.ecc(node.world, 0, 5, 1)
        faults.driver(node.world, loaded=False)
        faults.driver(node.world, loaded=True)
        again()
        faults.ecc(node.world, 0, 2, 0)
        volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
        assert [node.call("nvmlDeviceGetTotalEccErrors", 0, 0, kind) for kind in (volatile, aggregate)] == [
            2,
            7,
        ]
        assert [node.call("nvmlDeviceGetTotalEccErrors", 0, 1, kind) for kind in (volatile, aggregate)] == [
            0,
            1,
        ]
        values = node.call("nvmlDeviceGetFieldValues", 0, [3, 4, 5, 6])
        assert [field["value"] for field in values] == [2, 0, 7, 1]

    def test_another_gpu_is_there_afterwards(self, node, again):
        faults.swap(node.world, 1, "GPU-new")
        with pytest.raises(NvmlError, match="Uninitialized"):
            node.call("nvmlDeviceGetUUID", 1)
        again()
        assert node.call("nvmlDeviceGetUUID", 1) == "GPU-new"
        assert node.call("nvmlDeviceGetMinorNumber", 1) == 0
        with pytest.raises(RequestError, match="UUID GPU-new: a GPU of this world already has this UUID"):
            faults.swap(node.world, 0, "GPU-new")

    def test_waiting_ends(self, node):
        listen(node, "set", 0)
        faults.driver(node.world, loaded=False)
        with pytest.raises(NvmlError, match="Uninitialized"):
            wait(node, "set", 10_000)


def test_throttle_reasons_last_for_their_interval(node):
    now_ns = node.world.now_ns()
    node.work(0, (0, 50, 0), (100, 50, 0))
    faults.throttle(node.world, 0, 0x48, from_ns=now_ns + 5 * 10**9, until_ns=now_ns + 10 * 10**9)
    found = []
    for _ in range(4):
        node.now_s += 3
        found.append(node.call("nvmlDeviceGetCurrentClocksEventReasons", 0))
    assert found == [0, 0x48, 0x48, 0]
