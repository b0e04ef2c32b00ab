"""GPM measures the SMs and the PCIe link between two samples; pynvml uses the simulated library."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.specs import hopper
from lab.simgpu.world import World
from slurm_gpu.node.gpu.gpm import Gpm
from slurm_gpu.node.gpu.nvml_calls import NvmlCalls
from slurm_gpu.node.gpu.plausibility import PlausibilityFilter
from slurm_gpu.node.gpu.reading import Activity
from tests.node.simulated import load_library

START_NS = 1_800_000_000 * 10**9

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")


@pytest.fixture
def world(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    load_library(nvml_library)
    path = tmp_path / "gpus.world"
    create(path, [hopper("GPU-h", minor=0), hopper("GPU-a", minor=1, gpm=False)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    world = World(path)
    at(world, 0)
    pynvml.nvmlInit()
    yield world
    pynvml.nvmlShutdown()


def at(world: World, seconds: float) -> float:
    world.stop_clock(START_NS + 100 * 10**9 + round(seconds * 1e9))
    return seconds


def gpm(index: int) -> Gpm:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = f"GPU {index}"
    return Gpm(NvmlCalls(handle, uuid, lambda *_: None), None, PlausibilityFilter(uuid, lambda *_: None))


def test_a_gpu_without_gpm_is_logged(world: World) -> None:
    messages: list[str] = []
    calls = NvmlCalls(pynvml.nvmlDeviceGetHandleByIndex(1), "GPU-a", lambda _, text: messages.append(text))
    assert Gpm(calls, None, PlausibilityFilter("GPU-a", lambda *_: None)).read(0.0) is None
    assert messages == [
        "GPU GPU-a does not measure SM activity (GPM requires Hopper or later): sm_active_frac, "
        "sm_occupancy_frac, tensor_frac and dram_frac are gaps; GPM: Not Supported"
    ]


def test_gpm_covers_the_time_since_the_previous_sample(world: World) -> None:
    begin_ns = world.now_ns()
    world.register(
        0, [Point(begin_ns, 50.0, 100.0), Point(begin_ns + 100 * 10**9, 50.0, 100.0)], pid=os.getpid()
    )
    device = gpm(0)
    assert device.read(at(world, 0.0)) is None
    assert device.read(at(world, 0.05)) is None  # too soon for the driver
    activity = device.read(at(world, 2.0))
    assert activity is not None
    assert activity.seconds == 2.0
    assert activity.sm_active == pytest.approx(0.3)
    assert activity.dram == pytest.approx(0.3)
    assert activity.pcie_rx_bytes_per_s == pytest.approx(3e9)
    assert activity.pcie_tx_bytes_per_s == pytest.approx(1e9)
    device.close()
    assert device.read(at(world, 3.0)) is None


def test_activity_is_0_on_an_idle_device_and_none_without_gpm(world: World) -> None:
    devices = gpm(0), gpm(1)
    for device in devices:
        device.read(at(world, 0.0))
    activities = [device.read(at(world, 1.0)) for device in devices]
    idle = Activity(
        1.0,
        sm_active=0.0,
        sm_occupancy=0.0,
        tensor=0.0,
        dram=0.0,
        pcie_rx_bytes_per_s=0.0,
        pcie_tx_bytes_per_s=0.0,
    )
    assert activities == [idle, None]
