"""NVML's errors cost one field of one GPU, never more; the real pynvml over the simulated library."""

import ctypes
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from lab.nvml import build
from lab.simgpu import faults
from lab.simgpu.load import Point
from lab.simgpu.world import GpuSpec, World, create
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.devices import Device, DeviceLostError, Memory, Process, Utilization
from slurm_gpu.node.nvml import NvmlLibrary

START_NS = 1_800_000_000 * 10**9

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Loaded once by its path, it is found by its name when pynvml asks the linker for that.
    ctypes.CDLL(str(build(tmp_path_factory.mktemp("lib"))))


@pytest.fixture
def world(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    path = tmp_path / "gpus.world"
    create(path, [GpuSpec("GPU-a", minor=1), GpuSpec("GPU-b", minor=0)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    ctypes.CDLL(None).setenv(b"SIMGPU_WORLD", os.fsencode(path), 1)
    world = World(path)
    world.stop_clock(START_NS + 100 * 10**9)
    yield world
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass


def at(world: World, seconds: float) -> None:
    world.stop_clock(START_NS + 100 * 10**9 + round(seconds * 1e9))


def gpus() -> dict[str, Device]:
    return {device.uuid: device for device in NvmlLibrary().devices()}


def work(world: World, percent: float = 40, mib: float = 5000) -> None:
    now_ns = world.now_ns()
    points = [Point(now_ns, percent, mib), Point(now_ns + 1000 * 10**9, percent, mib)]
    world.register(0, points, pid=os.getpid())


def test_devices_have_their_uuid_and_minor_number(world: World) -> None:
    assert {uuid: device.minor for uuid, device in gpus().items()} == {"GPU-a": 1, "GPU-b": 0}


def test_readings_are_in_our_units(world: World) -> None:
    work(world)
    at(world, 10)
    device = gpus()["GPU-a"]
    assert device.memory() == Memory(5000 << 20, 40960 << 20)  # the driver's reserve is not used memory
    assert device.utilization() == Utilization(40, pytest.approx(24, abs=1))
    assert device.power_w() == 193
    assert device.sm_clock_mhz() == 1410
    assert device.temperature_c() == pytest.approx(48, abs=1)
    assert device.processes() == [Process(os.getpid(), 5000 << 20)]
    before = device.energy_j()
    at(world, 20)
    after = device.energy_j()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(1930, abs=1)


def test_rings_give_what_is_newer_than_asked_for(world: World) -> None:
    work(world)
    at(world, 10)
    device = gpus()["GPU-a"]
    samples = device.utilization_samples(0)
    assert samples is not None
    assert len(samples) == 120
    assert [s.at_us for s in samples] == sorted(s.at_us for s in samples)
    assert samples[-1].percent == 40
    last_us = samples[-1].at_us
    assert device.utilization_samples(last_us) == []
    at(world, 11)
    newer = device.utilization_samples(last_us)
    assert newer is not None
    assert len(newer) == 6
    processes = device.process_samples(last_us)
    assert processes is not None
    assert [(s.at_us, s.percent) for s in processes] == [(s.at_us, s.percent) for s in newer]


def test_an_idle_ring_is_empty_and_no_gap(world: World) -> None:
    faults.samples(world, 0, "missing-if-idle")
    device = gpus()["GPU-a"]
    assert device.utilization_samples(0) == []
    assert device.process_samples(0) == []
    assert device.processes() == []


def test_an_unsupported_call_costs_its_field_and_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    functions = ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization"]
    faults.unsupported(world, 0, functions)
    device = gpus()["GPU-a"]
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert device.power_w() is None
            assert device.utilization_samples(0) is None
            assert device.process_samples(0) is None
    assert len(caplog.records) == 3
    assert device.memory() is not None
    assert gpus()["GPU-b"].power_w() == 55


def test_a_lost_gpu_says_so_and_the_others_go_on(world: World) -> None:
    found = gpus()
    faults.lose(world, 0)
    with pytest.raises(DeviceLostError, match="GPU-a"):
        found["GPU-a"].memory()
    assert found["GPU-b"].memory() is not None


def test_without_a_driver_there_is_one_error(world: World) -> None:
    faults.driver(world, loaded=False)
    with pytest.raises(NvmlError, match=r"NVML: .*[Dd]river"):
        NvmlLibrary().devices()
    faults.driver(world, loaded=True)
    assert len(gpus()) == 2
