"""What the rest of the node may ask of a GPU, whoever answers (NVML, a test's own device)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_gpu.errors import SlurmGpuError


class DeviceLostError(SlurmGpuError):
    """The GPU no longer answers at all (it fell off the bus, or its driver went away)."""


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """Percent of the time since the sample before it in which a kernel ran; `at_us` is wall clock, µs."""

    at_us: int
    percent: float


@dataclass(frozen=True, slots=True)
class Utilization:
    """Percent of the driver's last sampling period (1/6 to 1 s): kernels, memory controller."""

    gpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; `used` is what jobs and the driver's contexts take, not the driver's reserve."""

    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a context on the GPU; `used` is its memory in bytes."""

    pid: int
    used: int | None


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Percent of the SMs' time that a process took up to `at_us` (wall clock, µs)."""

    pid: int
    at_us: int
    percent: float


class Device(Protocol):
    """One GPU. None means that it cannot say; DeviceLostError that it will say nothing more."""

    @property
    def uuid(self) -> str:
        """The only name of a GPU that everyone agrees on."""

    @property
    def minor(self) -> int | None:
        """N of /dev/nvidiaN, which gres.conf names."""

    def utilization_samples(self, after_us: int) -> Sequence[UtilizationSample] | None:
        """The driver's ring after that time, oldest first; empty when there is nothing newer."""

    def utilization(self) -> Utilization | None:
        """The driver's current value."""

    def memory(self) -> Memory | None:
        """Memory in use now."""

    def power_w(self) -> float | None:
        """Power draw now."""

    def temperature_c(self) -> float | None:
        """Temperature of the GPU."""

    def sm_clock_mhz(self) -> float | None:
        """Clock of the SMs now."""

    def energy_j(self) -> float | None:
        """A counter of the energy taken since the driver was loaded."""

    def processes(self) -> Sequence[Process] | None:
        """Processes that compute on it now."""

    def process_samples(self, after_us: int) -> Sequence[ProcessSample] | None:
        """Utilization by process after that time; empty when no process did anything."""


class DeviceLibrary(Protocol):
    """Finds the GPUs of this machine."""

    def devices(self) -> Sequence[Device]:
        """All GPUs that answer, in the driver's order; raises NvmlError when there is no driver."""
