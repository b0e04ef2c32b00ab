"""Injected faults look like real ones to users of NVML, affect one device each, and can be removed."""

import ctypes
import time

import pynvml
import pytest
from conftest import NvmlError

from lab.simgpu import faults, layout
from lab.simgpu.errors import RequestError

UTIL = pynvml.NVML_GPU_UTILIZATION_SAMPLES


def field(node, device, field_id):
    return node.call("nvmlDeviceGetFieldValues", device, [field_id])[0]


def test_a_lost_gpu_is_lost_from_then_on(node):
    faults.lose(node.world, 1, at_ns=node.world.now_ns() + 10**9)
    assert node.call("nvmlDeviceGetPowerUsage", 1) == 55_000
    node.now_s += 2
    with pytest.raises(NvmlError, match="NVMLError_GpuIsLost"):
        node.call("nvmlDeviceGetPowerUsage", 1)
    assert node.call("nvmlDeviceGetPowerUsage", 0) == 55_000
    assert node.call("nvmlDeviceGetCount") == 3
    faults.restore(node.world, 1)
    assert node.call("nvmlDeviceGetPowerUsage", 1) == 55_000


def test_unsupported_functions_are_those_named(node):
    faults.unsupported(node.world, 0, ["nvmlDeviceGetSamples", "nvmlDeviceGetMigMode"])
    for name, args in (("nvmlDeviceGetSamples", (UTIL, 0)), ("nvmlDeviceGetMigMode", ())):
        with pytest.raises(NvmlError, match="NotSupported"):
            node.call(name, 0, *args)
        assert node.call(name, 1, *args)
    faults.unsupported(node.world, 0, [])
    assert node.call("nvmlDeviceGetMigMode", 0) == [0, 0]
    with pytest.raises(RequestError, match="function 'nvmlX'"):
        faults.unsupported(node.world, 0, ["nvmlX"])


def test_unsupported_fields_are_those_named(node):
    faults.unsupported_fields(node.world, 0, [197])
    assert field(node, 0, 197)["nvmlReturn"] == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert field(node, 0, 198)["nvmlReturn"] == pynvml.NVML_SUCCESS


def test_latency_is_added_to_every_call(node):
    faults.slow(node.world, 0, 50)
    began = time.perf_counter()
    node.call("nvmlDeviceGetName", 0)
    assert time.perf_counter() - began >= 0.05


@pytest.mark.parametrize(("bits", "value_type"), [(32, "UNSIGNED_INT"), (64, "UNSIGNED_LONG_LONG")])
def test_counters_wrap(node, bits, value_type):
    node.work(0, (0, 50, 0), (20, 50, 0))  # 1 GB/s out, 3 GB/s in
    node.now_s += 1
    faults.wrap(node.world, 0, bits=bits, left=2_000_000_000)
    assert field(node, 0, 197)["value"] == 2**bits - 2_000_000_000
    assert field(node, 0, 197)["valueType"] == getattr(pynvml, f"NVML_VALUE_TYPE_{value_type}")
    node.now_s += 3
    assert field(node, 0, 197)["value"] == 1_000_000_000
    assert field(node, 0, 198)["value"] == 7_000_000_000 % 2**bits


def test_energy_wraps(node):
    faults.wrap(node.world, 0, left=55_000)
    assert node.call("nvmlDeviceGetTotalEnergyConsumption", 0) == 2**64 - 55_000
    node.now_s += 2
    assert node.call("nvmlDeviceGetTotalEnergyConsumption", 0) == 55_000


def test_samples_can_be_missing_always_or_while_idle(node):
    faults.samples(node.world, 0, "missing-if-idle")
    with pytest.raises(NvmlError, match="NotFound"):
        node.samples(0, UTIL)
    node.work(0, (0, 50, 0), (20, 50, 0))
    node.now_s += 1
    assert len(node.samples(0, UTIL)) == 120
    faults.samples(node.world, 0, "missing")
    with pytest.raises(NvmlError, match="NotFound"):
        node.samples(0, UTIL)


def test_an_unloaded_driver_cannot_be_initialised(node, nvml):
    faults.driver(node.world, loaded=False)
    nvml.request(call="nvmlShutdown", args=[])
    with pytest.raises(NvmlError, match="DriverNotLoaded"):
        nvml.request(world=str(node.path))
    faults.clear(node.world)
    nvml.request(world=str(node.path))


def test_the_command_does_the_same(node, capsys):
    world = ["--world", str(node.path)]
    assert faults.main([*world, "ecc", "2", "5", "1"]) == 0
    assert faults.main([*world, "throttle", "2", "0x40"]) == 0
    assert node.call("nvmlDeviceGetTotalEccErrors", 2, 0, 0) == 5
    assert node.call("nvmlDeviceGetTotalEccErrors", 2, 1, 0) == 1
    assert field(node, 2, 4)["value"] == 1
    assert node.call("nvmlDeviceGetCurrentClocksEventReasons", 2) == 0x41
    for words in (
        ["lose", "2"],
        ["restore", "2"],
        ["unsupported", "2", "nvmlDeviceGetName"],
        ["unsupported-fields", "2", "83"],
        ["slow", "2", "1"],
        ["hang", "2"],
        ["wrap", "2", "--bits", "32"],
        ["samples", "2", "missing"],
        ["xid", "2", "79"],
        ["mig", "2", "3g.20gb=MIG-a", "1g.5gb=MIG-b"],
        ["mig", "2"],
        ["driver", "unload"],
    ):
        assert faults.main([*world, *words]) == 0
    assert faults.main([*world, "clear"]) == 0
    assert bytes(node.world.content.devices[2].faults) == bytes(ctypes.sizeof(layout.FaultsStruct))
    assert node.world.content.driver_loaded == 1
    assert faults.main([*world, "lose", "9"]) == 2
    assert "device 9: this world has 0 to 2" in capsys.readouterr().err
    assert faults.main(["--world", "/nowhere", "clear"]) == 3
