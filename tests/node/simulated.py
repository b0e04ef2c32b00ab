"""A node with simulated GPUs; its clock advances only with events.

It uses the real pynvml over the simulated library, real hook files and its own /proc, with one fake clock.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import pynvml

from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.mig import capabilities, minors_file
from lab.simgpu.specs import GpuSpec
from lab.simgpu.truth import ProcessTruth
from lab.simgpu.world import Device, World
from slurm_gpu.node.gpu.nvml import NvmlReader
from slurm_gpu.node.process.process_jobs import ProcessJobs
from tests.node.fakeproc import FakeProc
from tests.node.fakes import WALL_0, FakeClock
from tests.node.machine import Machine

_NS = 10**9


class StoppedClock(FakeClock):
    """The clock of the node and of the simulated driver, which stamps samples with wall time."""

    def __init__(self, world: World) -> None:
        self._world, self.offset_s = world, WALL_0
        super().__init__()

    @property
    def now_s(self) -> float:
        return self._now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._now_s = now_s
        self._world.stop_clock(self.at_ns(now_s))

    def at_ns(self, at_s: float) -> int:
        """Return the wall clock in ns at a monotonic time."""
        return round((at_s + self.offset_s) * _NS)


class SimulatedMachine(Machine):
    """A node on simulated GPUs; `truths` lists its processes as simgpu records them."""

    clock: StoppedClock

    def __init__(self, directory: Path, specs: Sequence[GpuSpec], library: Path) -> None:
        load_library(library)
        path = directory / "gpus.world"
        # The driver was loaded, and its counters began, soon after the machine's boot.
        create(path, specs, boot=WALL_0 + 10)
        os.environ["SIMGPU_WORLD"] = os.fspath(path)
        self.world = World(path)
        super().__init__(directory, clock=StoppedClock(self.world))
        # The devices that Slurm allocates, by position: whole GPUs, then MIG instances.
        self.gpus: tuple[Device, ...] = tuple(self.world.computing)  # type: ignore[assignment]
        (directory / "mig-minors").write_text(minors_file(device.minor for device in self.world.devices))
        self.reader = NvmlReader(now_s=self.clock.monotonic)  # type: ignore[assignment]
        self.follows = False  # the clock is stopped between requests of slurm-gpud
        self.truths: list[ProcessTruth] = []
        self._proc = FakeProc(directory / "proc")
        self._next_pid = 10_000

    def slurmd(self, command: Sequence[str]) -> str:
        lines = []
        for gpu in self.gpus:
            needed = [f"/nowhere/nvidia-cap{minor}" for minor in capabilities(gpu.minor, gpu.gpu_instance)]
            files = ",".join([f"/nowhere/nvidia{gpu.minor}", *needed])
            lines.append(f"slurmd: Gres Name=gpu Type=a100 Count=1 File={files} (null)")
        return "\n".join(lines)

    def processes(self) -> ProcessJobs:
        return ProcessJobs(self._proc.root, self.clock.monotonic)

    def work(self, job_id: int, restart: int, gpu: int, points: Sequence[Point]) -> int:
        """Start a process of a job on a GPU and return its id."""
        self._next_pid += 1
        pid = self._next_pid
        cgroup = f"4:devices:/slurm_n1/uid_1001/job_{job_id}/step_batch"
        self._proc.process(pid, started=pid, cgroup=cgroup, name="python3")
        self.world.register(self.gpus[gpu].target, points, pid, started=0)
        self.truths.append(
            ProcessTruth(
                job_id=job_id,
                restart=restart,
                node="n1",
                uuid=self.gpus[gpu].uuid,
                memory_mib=self.gpus[gpu].memory_mib,
                pid=pid,
                points=tuple(points),
            )
        )
        return pid

    def vanish(self, pid: int) -> None:
        """Remove the process from /proc."""
        self._proc.end(pid)

    def close(self) -> None:
        """Shut down the library to let the next test load its own world."""
        if self.spool is not None:
            self.kill()
        shut_down_nvml()


def load_library(library: Path) -> None:
    """Load the simulated NVML in advance; the linker then finds it by name for pynvml."""
    ctypes.CDLL(str(library))


def shut_down_nvml() -> None:
    """Shut NVML down as many times as it was initialised."""
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass
