"""Test MIG instances in NVML and CUDA."""

import pynvml
import pytest
from conftest import NvmlError

from lab.simgpu import faults
from lab.simgpu.devices import openable, visible
from lab.simgpu.errors import RequestError
from lab.simgpu.mig import capabilities, minors_file
from lab.simgpu.specs import GpuSpec, MigSpec, hopper

MIB = 2**20
SMALL, BIG = MigSpec("1g.5gb", "MIG-small"), MigSpec("3g.20gb", "MIG-big")


@pytest.fixture
def node(make_node):
    return make_node(
        [
            GpuSpec("GPU-a", minor=1),
            GpuSpec("GPU-m", minor=0, mig=(BIG, SMALL)),
            GpuSpec("GPU-o", minor=2, mig_mode=2),
        ]
    )


def target(node, uuid):
    return next(one.target for one in node.world.instances if one.uuid == uuid)


def test_the_mig_mode_shows_whether_instances_are_possible(node):
    assert [node.call("nvmlDeviceGetMigMode", device) for device in (0, 1)] == [[0, 0], [1, 1]]
    assert [node.call("nvmlDeviceGetMaxMigDeviceCount", device) for device in range(3)] == [0, 7, 0]
    for name, args in (("nvmlDeviceGetMigMode", ()), ("nvmlDeviceGetMigDeviceHandleByIndex", (0,))):
        with pytest.raises(NvmlError, match="NotSupported"):
            node.call(name, 2, *args)


def test_instances_are_found_by_index_and_uuid(node):
    assert node.call("nvmlDeviceGetCount") == 3
    assert [node.call("nvmlDeviceGetMigDeviceHandleByIndex", 1, index) for index in range(2)] == [0, 1]
    assert node.call("nvmlDeviceGetIndex", "MIG-small") == 1
    with pytest.raises(NvmlError, match="NotFound"):
        node.call("nvmlDeviceGetMigDeviceHandleByIndex", 1, 2)
    with pytest.raises(NvmlError, match="InvalidArgument"):
        node.call("nvmlDeviceGetMigDeviceHandleByIndex", 1, 7)


def test_an_instance_has_its_own_names_and_size(node):
    assert node.call("nvmlDeviceGetUUID", "MIG-big") == "MIG-big"
    assert node.call("nvmlDeviceGetName", "MIG-big") == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert node.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "MIG-big") == 1
    assert node.call("nvmlDeviceIsMigDeviceHandle", "MIG-big") == 1
    assert node.call("nvmlDeviceIsMigDeviceHandle", 1) == 0
    assert [node.call("nvmlDeviceGetGpuInstanceId", uuid) for uuid in ("MIG-big", "MIG-small")] == [1, 7]
    assert node.call("nvmlDeviceGetComputeInstanceId", "MIG-big") == 0
    attributes = node.call("nvmlDeviceGetAttributes", "MIG-big")
    assert (attributes["multiprocessorCount"], attributes["gpuInstanceSliceCount"]) == (42, 3)
    assert attributes["memorySizeMB"] == 20096


def test_memory_and_processes_are_reported_per_instance_and_in_total(node):
    node.work(target(node, "MIG-big"), (0, 50, 3000), (60, 50, 3000), pid=11)
    node.work(target(node, "MIG-small"), (0, 50, 1000), (60, 50, 1000), pid=12, mps=True)
    node.now_s += 10
    memory = node.call("nvmlDeviceGetMemoryInfo", "MIG-big", pynvml.nvmlMemory_v2)
    assert (memory["used"], memory["total"]) == (3000 * MIB, 20096 * MIB)
    assert node.call("nvmlDeviceGetMemoryInfo", 1, pynvml.nvmlMemory_v2)["used"] == 4000 * MIB

    def listed(device, name="nvmlDeviceGetComputeRunningProcesses"):
        found = node.call(name, device)
        return [(one["pid"], one["gpuInstanceId"], one["computeInstanceId"]) for one in found]

    assert listed("MIG-big") == [(11, 1, 0)]
    assert listed("MIG-small") == [(12, 7, 0)]
    assert sorted(listed(1)) == [(11, 1, 0), (12, 7, 0)]
    assert listed(1, "nvmlDeviceGetMPSComputeRunningProcesses") == [(12, 7, 0)]


@pytest.mark.parametrize("device", [1, "MIG-big"])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("nvmlDeviceGetUtilizationRates", ()),
        ("nvmlDeviceGetProcessUtilization", (0,)),
        ("nvmlDeviceGetSamples", (pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)),
        ("nvmlDeviceGetSamples", (pynvml.NVML_MEMORY_UTILIZATION_SAMPLES, 0)),
    ],
)
def test_utilisation_of_instances_is_not_supported(node, device, name, args):
    with pytest.raises(NvmlError, match="NotSupported"):
        node.call(name, device, *args)


def test_power_and_energy_are_the_devices_alone(node):
    node.work(target(node, "MIG-big"), (0, 50, 0), (60, 50, 0))
    before = node.call("nvmlDeviceGetTotalEnergyConsumption", 1)
    node.now_s += 10
    extra_mw = 345_000 * 0.5 * 3 / 7
    assert node.call("nvmlDeviceGetPowerUsage", 1) == pytest.approx(55_000 + extra_mw, abs=1)
    assert node.call("nvmlDeviceGetTotalEnergyConsumption", 1) - before == pytest.approx(
        10 * (55_000 + extra_mw), abs=2
    )
    assert node.samples(1, pynvml.NVML_TOTAL_POWER_SAMPLES)[-1][1] == pytest.approx(55_000 + extra_mw, abs=1)
    with pytest.raises(NvmlError, match="NotSupported"):
        node.call("nvmlDeviceGetPowerUsage", "MIG-big")


def test_performance_monitoring_works_on_an_instance(make_node):
    node = make_node([hopper("GPU-h", mig=(MigSpec("3g.40gb", "MIG-x"), MigSpec("1g.10gb", "MIG-y")))])
    node.work(target(node, "MIG-x"), (0, 50, 0), (60, 50, 0))

    def sample(suffix):
        for name, call, device, args in (
            ("handle", "nvmlGpmSampleGet", "MIG-x", ()),
            ("number", "nvmlGpmMigSampleGet", 0, (1,)),
            ("other", "nvmlGpmSampleGet", "MIG-y", ()),
            ("whole", "nvmlGpmSampleGet", 0, ()),
        ):
            node.call("nvmlGpmSampleAlloc", None, keep=name + suffix)
            node.call(call, device, *args, {"kept": name + suffix}, keep=name + suffix)

    sample("1")
    node.now_s += 10
    sample("2")
    sm = pynvml.NVML_GPM_METRIC_SM_UTIL
    found = [node.gpm(f"{name}1", f"{name}2", sm)[0] for name in ("handle", "number", "other", "whole")]
    assert found == pytest.approx([30, 30, 0, 30 * 3 / 7])
    with pytest.raises(NvmlError, match="InvalidArgument"):
        node.gpm("handle1", "other2", sm)


def test_instances_vanish_and_appear(node):
    old = target(node, "MIG-big")
    node.work(old, (0, 70, 3000), (60, 70, 3000))
    node.call("nvmlDeviceGetMigDeviceHandleByIndex", 1, 0, keep="old")
    node.now_s += 10
    energy = node.call("nvmlDeviceGetTotalEnergyConsumption", 1)
    faults.mig(node.world, 1, [SMALL])
    assert node.call("nvmlDeviceGetUUID", None, {"kept": "old"}) == "MIG-small"  # handles are used again
    with pytest.raises(NvmlError, match="NotFound"):
        node.call("nvmlDeviceGetUUID", "MIG-big")
    assert node.call("nvmlDeviceGetComputeRunningProcesses", 1) == []
    assert node.call("nvmlDeviceGetTotalEnergyConsumption", 1) == energy
    node.now_s += 1
    assert node.call("nvmlDeviceGetTotalEnergyConsumption", 1) == energy + 55_000
    faults.mig(node.world, 1, [])
    with pytest.raises(NvmlError, match="InvalidArgument"):
        node.call("nvmlDeviceGetUUID", None, {"kept": "old"})
    assert node.call("nvmlDeviceGetMigMode", 1) == [0, 0]
    assert node.call("nvmlDeviceGetUtilizationRates", 1)["gpu"] == 0
    assert node.call("nvmlDeviceGetTotalEnergyConsumption", 1) == energy + 55_000


def test_impossible_instances_are_refused(node):
    with pytest.raises(RequestError, match="profile '5g': must be one of 1g"):
        faults.mig(node.world, 1, [MigSpec("5g", "MIG-z")])
    with pytest.raises(RequestError, match="8 slices: a GPU has 7"):
        faults.mig(node.world, 1, [MigSpec("4g.20gb", "MIG-y"), MigSpec("4g.20gb", "MIG-z")])
    assert [one.uuid for one in node.world.instances] == ["MIG-big", "MIG-small"]


def test_a_program_sees_one_instance(node, tmp_path):
    everything = openable(node.world.computing, None)
    assert [one.uuid for one in everything] == ["GPU-a", "MIG-big", "MIG-small", "GPU-o"]
    for variable, seen in (
        ("MIG-small", ["MIG-small"]),
        ("MIG-big,MIG-small", ["MIG-big"]),
        ("0", ["GPU-a"]),
        ("2", ["MIG-small"]),
        (None, ["MIG-big"]),
        ("GPU-m", []),
    ):
        assert [one.uuid for one in visible(everything, variable)] == seen


def test_an_instance_may_be_opened_where_all_its_files_may(node, tmp_path):
    (tmp_path / "nvidia-caps").mkdir()
    for name in (
        "nvidia0",
        "nvidia-caps/nvidia-cap12",
        "nvidia-caps/nvidia-cap13",
        "nvidia-caps/nvidia-cap66",
    ):
        (tmp_path / name).touch()
    assert [one.uuid for one in openable(node.world.computing, tmp_path)] == ["MIG-big"]


def test_minor_numbers_of_device_files_match_the_driver_s():
    lines = minors_file([0, 1]).splitlines()
    assert lines[:5] == [
        "config 1",
        "monitor 2",
        "gpu0/gi0/access 3",
        "gpu0/gi0/ci0/access 4",
        "gpu0/gi0/ci1/access 5",
    ]
    assert {"gpu0/gi7/access 66", "gpu0/gi7/ci0/access 67", "gpu1/gi0/access 138"} <= set(lines)
    assert capabilities(0, 7) == [66, 67]
    assert len({line.split()[1] for line in lines}) == len(lines)
