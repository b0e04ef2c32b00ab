"""A simulated node under the real pynvml, whose clock a test advances."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.specs import GpuSpec
from lab.simgpu.world import World

START = 1_800_000_000  # when the simulated node boots, epoch seconds; the clock starts 100 s later


class NvmlError(Exception):
    """An exception of pynvml, by its class name."""


class Nvml:
    """pynvml in another process."""

    def __init__(self, library: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nvml_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)},
        )

    def request(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise NvmlError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Node:
    """A world with a stopped clock, and the NVML that reports it."""

    def __init__(self, path: Path, nvml: Nvml, gpus: list[GpuSpec]) -> None:
        create(path, gpus, boot=START)
        self.path = path
        self.world = World(path)
        self._nvml = nvml
        self.now_s = START + 100.0
        nvml.request(world=str(path))

    @property
    def now_s(self) -> float:
        return self.world.now_ns() / 1e9

    @now_s.setter
    def now_s(self, value: float) -> None:
        self.world.stop_clock(round(value * 1e9))

    def call(self, name: str, device: int | str | None = None, *args, **keep):
        """Call a function of pynvml on a device, given by index or UUID."""
        return self._nvml.request(call=name, device=device, args=args, **keep)

    def gpm(self, first: str, second: str, *metrics: int) -> list[float | None]:
        """Return metrics between two kept samples."""
        return self._nvml.request(gpm=[first, second], metrics=metrics)

    def cpu_s(self) -> float:
        """Return the processor time that pynvml's process used so far."""
        return self._nvml.request(cpu=True)

    def work(self, target: int, *vertices: tuple[float, float, float], pid: int = 4242, **how) -> int:
        """Put an invented process on a GPU or MIG instance: (seconds from now, util %, MiB) each."""
        now_ns = self.world.now_ns()
        points = [Point(now_ns + round(after * 1e9), util, memory) for after, util, memory in vertices]
        return self.world.register(target, points, pid, started=0, **how)

    def samples(self, device: int, kind: int, last_seen_us: int = 0) -> list[tuple[int, int]]:
        """Return (µs, value) of the device's ring."""
        found = self.call("nvmlDeviceGetSamples", device, kind, last_seen_us)
        return [(sample["timeStamp"], sample["sampleValue"]) for sample in found]


@pytest.fixture(scope="session")
def nvml(nvml_library):
    worker = Nvml(nvml_library)
    yield worker
    worker.close()


@pytest.fixture
def make_node(tmp_path, nvml):
    """Return a function that creates a node with given GPUs."""
    yield lambda gpus: Node(tmp_path / "gpus.world", nvml, gpus)
    nvml.request(call="nvmlShutdown", args=[])


@pytest.fixture
def node(make_node):
    """Return three GPUs whose minor numbers and NVML indices differ."""
    return make_node(
        [
            GpuSpec(uuid="GPU-00000000-0000-0000-0000-00000000000a", minor=2),
            GpuSpec(uuid="GPU-00000000-0000-0000-0000-00000000000b", minor=0, memory_mib=16384, name="V100"),
            GpuSpec(uuid="GPU-00000000-0000-0000-0000-00000000000c", minor=1, pci_bus_id="0:3b:0"),
        ]
    )
