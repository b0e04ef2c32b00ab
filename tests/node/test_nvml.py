"""An error of NVML costs one field of one GPU, with the real pynvml over the simulated library."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.simgpu import faults
from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.specs import MIG_PROFILES, GpuSpec, MigSpec, hopper
from lab.simgpu.world import World
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.nvml import NvmlReader
from slurm_gpu.node.gpu.nvml_device import since_boot_s
from slurm_gpu.node.gpu.reading import (
    DeviceCounter,
    DeviceMemory,
    GpuProcess,
    ReadError,
    Reading,
    ReadRequest,
    Results,
)
from tests.node.simulated import load_library, shut_down_nvml

MEMORY_MIB = {name: profile.memory_mib for name, profile in MIG_PROFILES.items()}
START_NS = 1_800_000_000 * 10**9

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")


@pytest.fixture(scope="module")
def library(nvml_library: Path) -> None:
    load_library(nvml_library)


@pytest.fixture
def world(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    path = tmp_path / "gpus.world"
    create(path, [GpuSpec("GPU-a", minor=1), GpuSpec("GPU-b", minor=0)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    world = World(path)
    world.stop_clock(START_NS + 100 * 10**9)
    yield world
    shut_down_nvml()


def at(world: World, seconds: float) -> None:
    world.stop_clock(START_NS + 100 * 10**9 + round(seconds * 1e9))


class Gpus:
    """A reader that has found its devices."""

    def __init__(self, now_s: Callable[[], float] = since_boot_s) -> None:
        self.messages: list[str] = []
        self.reader = NvmlReader(lambda _, text: self.messages.append(text), now_s)
        self.facts = {facts.uuid: facts for facts in self.reader.devices()}

    def results(self, uuid: str, **request: Any) -> Results:
        return self.reader.read([ReadRequest(uuid=uuid, **request)])

    def reading(self, uuid: str, **request: Any) -> Reading:
        return self.results(uuid, **request).readings[uuid]


def work(world: World, percent: float = 40, mib: float = 5000) -> None:
    now_ns = world.now_ns()
    points = [Point(now_ns, percent, mib), Point(now_ns + 1000 * 10**9, percent, mib)]
    world.register(0, points, pid=os.getpid())


def test_devices_have_their_uuid_and_minor_number(world: World) -> None:
    assert {uuid: facts.minor for uuid, facts in Gpus().facts.items()} == {"GPU-a": 1, "GPU-b": 0}


def test_readings_are_in_the_units_of_their_names(world: World) -> None:
    work(world)
    at(world, 10)
    gpus = Gpus()
    reading = gpus.reading("GPU-a", detailed=True, processes=True)
    assert reading.memory == DeviceMemory(5000 << 20, 40960 << 20)  # the driver's reserve is not used memory
    assert reading.util_pct == 40
    assert reading.mem_util_pct == pytest.approx(24, abs=1)
    assert reading.power_w == 193
    assert reading.sm_clock_mhz == 1410
    assert reading.temp_c == pytest.approx(48, abs=1)
    assert reading.processes == [GpuProcess(os.getpid(), 5000 << 20)]
    assert reading.throttle == []
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (DeviceCounter(0), DeviceCounter(0))
    at(world, 20)
    later = gpus.reading("GPU-a", detailed=True)
    assert grown(reading.energy_mj, later.energy_mj) == pytest.approx(1930_000, abs=1000)
    content = world.content.devices[0]
    assert grown(reading.pcie_rx_bytes, later.pcie_rx_bytes) == pytest.approx(
        4 * content.pcie_rx_bytes_per_s, rel=1e-3
    )
    assert grown(reading.pcie_tx_bytes, later.pcie_tx_bytes) == pytest.approx(
        4 * content.pcie_tx_bytes_per_s, rel=1e-3
    )


def grown(before: DeviceCounter | None, after: DeviceCounter | None) -> int:
    assert before is not None
    assert after is not None
    assert before.bits == after.bits
    return after.value - before.value


def test_counters_have_their_width(world: World) -> None:
    faults.wrap(world, 0, bits=32)
    reading = Gpus().reading("GPU-a", detailed=True)
    assert reading.pcie_rx_bytes is not None
    assert reading.energy_mj is not None
    assert (reading.pcie_rx_bytes.bits, reading.energy_mj.bits) == (32, 64)


def test_totals_missing_from_field_values_come_from_other_functions(world: World) -> None:
    faults.ecc(world, 0, 7, 1)
    faults.unsupported_fields(world, 0, [3, 4, 83])
    gpus = Gpus()
    reading = gpus.reading("GPU-a", detailed=True)
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (DeviceCounter(7), DeviceCounter(1))
    assert reading.energy_mj is not None
    assert reading.pcie_rx_bytes is not None
    faults.unsupported(world, 0, ["nvmlDeviceGetFieldValues"])
    gpus.reader.devices()
    reading = gpus.reading("GPU-a", detailed=True)
    assert (reading.ecc_corrected, reading.pcie_rx_bytes) == (DeviceCounter(7), None)
    assert reading.energy_mj is not None


def test_older_functions_are_used_if_newer_ones_are_missing(world: World) -> None:
    newer = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"]
    faults.unsupported(world, 0, [*newer, "nvmlDeviceGetMemoryInfo_v2"])
    faults.throttle(world, 0, 0x4 | 0x40 | 0x1)
    work(world)
    at(world, 10)
    reading = Gpus().reading("GPU-a", detailed=True)
    assert reading.temp_c == pytest.approx(48, abs=1)
    assert reading.throttle == ["sw_power_cap", "hw_thermal_slowdown"]  # idle is not a throttle reason
    assert reading.memory is not None


def test_facts_contain_identity_and_limits_of_the_device(world: World) -> None:
    facts = Gpus().facts["GPU-a"]
    content = world.content.devices[0]
    assert (facts.index, facts.minor, facts.parent) == (0, 1, None)
    assert facts.memory_bytes == content.memory_mib << 20
    assert facts.power_limit_w == content.power_limit_mw / 1000
    assert facts.sm_clock_max_mhz == content.max_sm_clock_mhz
    assert facts.pcie_bytes_per_s == pytest.approx(31.5e9, rel=0.01)  # generation 4, 16 lanes
    assert None not in (facts.name, facts.pci_bus_id, facts.driver)


def test_only_requested_fields_are_read(world: World) -> None:
    work(world)
    at(world, 10)
    reading = Gpus().reading("GPU-a")
    assert reading == Reading(at_s=reading.at_s, memory=DeviceMemory(5000 << 20, 40960 << 20))


def test_rings_return_only_newer_samples(world: World) -> None:
    work(world)
    at(world, 10)
    gpus = Gpus()
    samples = gpus.reading("GPU-a", ring_after_us=0).ring
    assert samples is not None
    assert len(samples) == 120
    assert [s.at_us for s in samples] == sorted(s.at_us for s in samples)
    assert samples[-1].percent == 40
    last_us = samples[-1].at_us
    assert gpus.reading("GPU-a", ring_after_us=last_us).ring == []
    at(world, 11)
    reading = gpus.reading("GPU-a", ring_after_us=last_us, process_ring_after_us=last_us)
    assert reading.ring is not None
    assert len(reading.ring) == 6
    assert reading.process_ring is not None
    assert [(s.at_us, s.percent) for s in reading.process_ring] == [
        (s.at_us, s.percent) for s in reading.ring
    ]


def test_the_ring_of_an_idle_gpu_is_empty_and_not_a_gap(world: World) -> None:
    faults.samples(world, 0, "missing-if-idle")
    reading = Gpus().reading("GPU-a", ring_after_us=0, process_ring_after_us=0, processes=True)
    assert (reading.ring, reading.process_ring, reading.processes) == ([], [], [])


def test_an_unsupported_call_costs_its_field_and_is_logged_once(world: World) -> None:
    functions = ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization"]
    faults.unsupported(world, 0, functions)
    gpus = Gpus()
    before = world.calls()
    for _ in range(3):
        reading = gpus.reading("GPU-a", detailed=True, ring_after_us=0, process_ring_after_us=0)
        assert (reading.power_w, reading.ring, reading.process_ring) == (None, None, None)
        gpus.reader.devices()
    for function in functions:
        assert len([text for text in gpus.messages if f"{function}:" in text]) == 1
        # Each reading makes two calls, and each search for devices allows new attempts.
        assert world.calls()[function] == before[function] + 6
    assert reading.memory is not None
    assert gpus.reading("GPU-b", detailed=True).power_w == 55


def test_an_unsupported_call_is_retried_with_backoff(world: World) -> None:
    faults.unsupported(world, 0, ["nvmlDeviceGetPowerUsage"])
    gpus = Gpus()
    queried = []
    for sample in range(100):
        before = world.calls()["nvmlDeviceGetPowerUsage"]
        gpus.reading("GPU-a", detailed=True)
        if world.calls()["nvmlDeviceGetPowerUsage"] > before:
            queried.append(sample)
    assert queried == [0, 2, 5, 10, 19, 36, 69]
    faults.unsupported(world, 0, [])
    assert [gpus.reading("GPU-a", detailed=True).power_w for _ in range(40)][-1] == 55


def test_without_a_ring_the_current_value_is_read(world: World) -> None:
    work(world)
    at(world, 10)
    faults.unsupported(world, 0, ["nvmlDeviceGetSamples"])
    reading = Gpus().reading("GPU-a", ring_after_us=0)
    assert (reading.ring, reading.util_pct) == (None, 40)


def test_a_lost_gpu_is_reported_and_the_others_are_read(world: World) -> None:
    gpus = Gpus()
    faults.lose(world, 0)
    results = gpus.reader.read([ReadRequest(uuid="GPU-a"), ReadRequest(uuid="GPU-b")])
    assert results.failures["GPU-a"].kind is ReadError.LOST
    assert results.readings["GPU-b"].memory is not None
    assert [facts.uuid for facts in gpus.reader.devices()] == ["GPU-b"]


def test_without_a_driver_there_is_one_error(world: World) -> None:
    faults.driver(world, loaded=False)
    with pytest.raises(NvmlError, match=r"NVML: .*[Dd]river"):
        NvmlReader().devices()
    faults.driver(world, loaded=True)
    assert len(Gpus().facts) == 2


@pytest.fixture
def cut(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return a world with one GPU split into two instances and one whole GPU, both with GPM and NVLink."""
    path = tmp_path / "cut.world"
    parts = (MigSpec("1g.10gb", "MIG-small"), MigSpec("3g.40gb", "MIG-big"))
    create(path, [hopper("GPU-cut", minor=0, mig=parts), hopper("GPU-whole", minor=1)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    world = World(path)
    at(world, 0)
    yield world
    shut_down_nvml()


def test_instances_are_listed_after_their_gpu(cut: World) -> None:
    facts = Gpus().facts
    assert list(facts) == ["GPU-cut", "MIG-small", "MIG-big", "GPU-whole"]
    big = facts["MIG-big"]
    assert (big.parent, big.index, big.minor) == ("GPU-cut", 0, 0)
    assert (big.gpu_instance, big.compute_instance) == (1, 0)
    assert big.memory_bytes == MEMORY_MIB["3g.40gb"] << 20
    assert facts["GPU-cut"].parent is None


def test_an_instance_has_only_memory_and_processes(cut: World) -> None:
    target = next(one.target for one in cut.instances if one.uuid == "MIG-big")
    now_ns = cut.now_ns()
    points = [Point(now_ns, 70, 3000), Point(now_ns + 1000 * 10**9, 70, 3000)]
    cut.register(target, points, pid=os.getpid())
    cut.stop_clock(now_ns + 10 * 10**9)
    gpus = Gpus()
    big = gpus.reading("MIG-big", detailed=True, processes=True, ring_after_us=0, process_ring_after_us=0)
    assert big._replace(at_s=0.0) == Reading(
        at_s=0.0,
        memory=DeviceMemory(3000 << 20, MEMORY_MIB["3g.40gb"] << 20),
        processes=[GpuProcess(os.getpid(), 3000 << 20)],
    )
    small = gpus.reading("MIG-small", processes=True)
    assert (small.memory, small.processes) == (DeviceMemory(0, MEMORY_MIB["1g.10gb"] << 20), [])
    assert gpus.reading("GPU-cut", processes=True).processes == [GpuProcess(os.getpid(), 3000 << 20)]
    assert not [text for text in gpus.messages if "MIG" in text]  # missing values of instances are normal


def test_a_removed_instance_is_lost_and_never_another(cut: World) -> None:
    gpus = Gpus()
    faults.mig(cut, 0, [MigSpec("1g.10gb", "MIG-new"), MigSpec("3g.40gb", "MIG-newer")])
    for uuid in ("MIG-small", "MIG-big"):
        assert gpus.results(uuid, detailed=True).failures[uuid].kind is ReadError.LOST
    assert gpus.reading("GPU-whole").memory is not None
    assert [facts.uuid for facts in gpus.reader.devices()] == ["GPU-cut", "MIG-new", "MIG-newer", "GPU-whole"]
    assert gpus.reading("MIG-new", detailed=True).memory is not None


def test_gpm_measures_instances_and_gpus_between_two_samples(cut: World) -> None:
    for target in (1, next(one.target for one in cut.instances if one.uuid == "MIG-big")):
        now_ns = cut.now_ns()
        points = [Point(now_ns - 10**9, 80, 1000), Point(now_ns + 1000 * 10**9, 80, 1000)]
        cut.register(target, points, pid=os.getpid())
    gpus = Gpus(lambda: cut.now_ns() / 1e9)
    for uuid in ("MIG-big", "GPU-whole"):
        assert gpus.reading(uuid, detailed=True).activity is None
        cut.stop_clock(cut.now_ns() + 2 * 10**9)
        activity = gpus.reading(uuid, detailed=True).activity
        assert activity is not None
        assert activity.seconds == pytest.approx(2)
        assert activity.sm_active is not None
        assert 0 < activity.sm_active <= 1
        assert None not in activity
        assert gpus.reading(uuid, detailed=True).activity is None  # too soon


@pytest.mark.parametrize("version", [6, 7])
def test_nvlink_counters_cover_all_links_in_each_generation(
    library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = tmp_path / "links.world"
    create(path, [hopper("GPU-h", minor=0, nvlink_version=version)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    world = World(path)
    at(world, 0)
    if version == 7:
        faults.unsupported_fields(world, 0, [138, 139])
    work(world, 50)
    gpus = Gpus()
    for _ in range(3):
        gpus.reading("GPU-h", detailed=True)  # detects the supported counters
    before = gpus.reading("GPU-h", detailed=True)
    at(world, 10)
    after = gpus.reading("GPU-h", detailed=True)
    spec = hopper("GPU-h", minor=0)
    assert grown(before.nvlink_tx_bytes, after.nvlink_tx_bytes) == pytest.approx(
        5 * spec.nvlink_tx_bytes_per_s, rel=1e-6
    )
    assert grown(before.nvlink_rx_bytes, after.nvlink_rx_bytes) == pytest.approx(
        5 * spec.nvlink_rx_bytes_per_s, rel=1e-6
    )
    assert gpus.facts["GPU-h"].nvlink_bytes_per_s == 18 * spec.nvlink_mb_per_s * 1e6
    shut_down_nvml()


def test_each_xid_is_reported_once_with_its_device(cut: World) -> None:
    gpus = Gpus()
    faults.xid(cut, 1, 79)
    faults.xid(cut, 0, 43, 1)
    results = gpus.results("GPU-whole", detailed=True)
    assert [(xid.uuid, xid.code) for xid in results.xids] == [("GPU-whole", 79), ("MIG-big", 43)]
    assert gpus.results("GPU-whole", detailed=True).xids == []
    faults.xid(cut, 1, 31)
    gpus.reader.devices()
    faults.xid(cut, 1, 32)
    assert [xid.code for xid in gpus.reader.read([]).xids] == [31, 32]


def test_a_reloaded_driver_is_initialised_again(world: World) -> None:
    gpus = Gpus()
    faults.driver(world, loaded=False)
    assert gpus.results("GPU-a").failures["GPU-a"].kind is ReadError.DRIVER
    with pytest.raises(NvmlError):
        gpus.reader.devices()
    faults.driver(world, loaded=True)
    faults.swap(world, 0, "GPU-new")
    assert [facts.uuid for facts in gpus.reader.devices()] == ["GPU-new", "GPU-b"]
    assert gpus.reading("GPU-b", detailed=True).power_w is not None
