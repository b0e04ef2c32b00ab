"""GPUs through NVIDIA's library: the one place that knows pynvml and what its errors mean."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.reading import (
    Counter,
    Facts,
    Failure,
    Memory,
    Process,
    ProcessSample,
    Reading,
    Request,
    Results,
    Trouble,
    UtilizationSample,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

# After these the handle is worthless; a driver that was reloaded under us is UNINITIALIZED or UNKNOWN.
_LOST = frozenset(
    (
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_RESET_REQUIRED,
    )
)
_NO_SUCH_VERSION = frozenset(
    (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
)
_PERCENT_MAX = 100


class _LostError(Exception):
    """The handle is worthless."""


class _Device:
    """One GPU as NVML shows it."""

    def __init__(self, handle: Any, facts: Facts) -> None:
        self._handle, self.facts, self._uuid = handle, facts, facts.uuid
        self._memory_version: int | None = pynvml.nvmlMemory_v2
        self._told: set[str] = set()

    def read(self, request: Request) -> Reading:
        """What is asked for; raises _LostError."""
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        memory = self.memory()
        ring = None if request.ring_after_us is None else self.utilization_samples(request.ring_after_us)
        process_ring = None
        if request.process_ring_after_us is not None:
            process_ring = self.process_samples(request.process_ring_after_us)
        rates = None
        if request.detailed or (request.ring_after_us is not None and ring is None):
            rates = self.utilization()
        energy = self.energy_mj() if request.detailed else None
        return Reading(
            at_s=at_s,
            memory=memory,
            processes=self.processes() if request.processes else None,
            ring=ring,
            process_ring=process_ring,
            util_pct=None if rates is None else rates[0],
            mem_util_pct=None if rates is None else rates[1],
            power_w=self.power_w() if request.detailed else None,
            temp_c=self.temperature_c() if request.detailed else None,
            sm_clock_mhz=self.sm_clock_mhz() if request.detailed else None,
            energy_mj=None if energy is None else Counter(energy),
        )

    def utilization_samples(self, after_us: int) -> Sequence[UtilizationSample] | None:
        """By nvmlDeviceGetSamples; NOT_FOUND means that the ring holds nothing newer."""

        def read() -> list[UtilizationSample]:
            kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
            _, samples = pynvml.nvmlDeviceGetSamples(self._handle, kind, after_us)
            found = [UtilizationSample(int(s.timeStamp), float(s.sampleValue.uiVal)) for s in samples]
            return [s for s in found if s.at_us > after_us and s.percent <= _PERCENT_MAX]

        nothing_newer: list[UtilizationSample] = []
        return self._read("utilization samples", read, nothing_newer)

    def utilization(self) -> tuple[float, float] | None:
        """By nvmlDeviceGetUtilizationRates: of the GPU, of the memory controller."""

        def read() -> tuple[float, float]:
            rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
            return float(rates.gpu), float(rates.memory)

        return self._read("utilization", read)

    def memory(self) -> Memory | None:
        """By nvmlDeviceGetMemoryInfo_v2, which counts the driver's reserve apart, else the first version."""

        def read() -> Memory:
            try:
                info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._memory_version)
            except pynvml.NVMLError as error:
                if self._memory_version is None or error.value not in _NO_SUCH_VERSION:
                    raise
                self._memory_version = None
                return read()
            return Memory(int(info.used), int(info.total))

        return self._read("memory", read)

    def power_w(self) -> float | None:
        """By nvmlDeviceGetPowerUsage, which is in mW."""
        return self._read("power", lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)

    def temperature_c(self) -> float | None:
        """By nvmlDeviceGetTemperature of the GPU sensor."""

        def read() -> float:
            return float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU))

        return self._read("temperature", read)

    def sm_clock_mhz(self) -> float | None:
        """By nvmlDeviceGetClockInfo of the SM clock."""

        def read() -> float:
            return float(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))

        return self._read("SM clock", read)

    def energy_mj(self) -> int | None:
        """By nvmlDeviceGetTotalEnergyConsumption."""
        return self._read("energy", lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)))

    def processes(self) -> Sequence[Process] | None:
        """By nvmlDeviceGetComputeRunningProcesses."""

        def read() -> list[Process]:
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            return [Process(int(p.pid), p.usedGpuMemory) for p in running]

        return self._read("processes", read)

    def process_samples(self, after_us: int) -> Sequence[ProcessSample] | None:
        """By nvmlDeviceGetProcessUtilization; the driver fills unused entries with zeros or rubbish."""

        def read() -> list[ProcessSample]:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, after_us)
            found = [ProcessSample(int(s.pid), int(s.timeStamp), float(s.smUtil)) for s in samples]
            return [s for s in found if s.pid > 0 and s.at_us > after_us and s.percent <= _PERCENT_MAX]

        nothing_newer: list[ProcessSample] = []
        return self._read("process utilization", read, nothing_newer)

    def _read(self, what: str, read: Callable[[], T], when_not_found: T | None = None) -> T | None:
        """One reading; a failing call costs that field alone, and is told once."""
        try:
            return read()
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                raise _LostError(str(error)) from error
            if error.value == pynvml.NVML_ERROR_NOT_FOUND and when_not_found is not None:
                return when_not_found
            if what not in self._told:
                self._told.add(what)
                log.info("%s: no %s: %s", self._uuid, what, error)
            return None


class NvmlReader:
    """The GPUs that the loaded driver shows."""

    def __init__(self) -> None:
        self._silent: set[int] = set()
        self._devices: dict[str, _Device] = {}

    def devices(self) -> Sequence[Facts]:
        """All GPUs that answer, by NVML index; each call looks anew, so that a reloaded driver is found."""
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error
        self._devices = {}
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                facts = Facts(
                    uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                    index=index,
                    minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
                )
                device = _Device(handle, facts)
                device.memory()
            except (pynvml.NVMLError, _LostError) as error:
                if index not in self._silent:
                    self._silent.add(index)
                    log.warning("GPU with NVML index %d does not answer: %s", index, error)
                continue
            self._silent.discard(index)
            self._devices[facts.uuid] = device
        return [device.facts for device in self._devices.values()]

    def read(self, requests: Sequence[Request]) -> Results:
        """See Reader."""
        readings: dict[str, Reading] = {}
        failures: dict[str, Failure] = {}
        for request in requests:
            device = self._devices.get(request.uuid)
            if device is None:
                failures[request.uuid] = Failure(Trouble.LOST, "the driver does not show it")
                continue
            try:
                readings[request.uuid] = device.read(request)
            except _LostError as error:
                failures[request.uuid] = Failure(Trouble.LOST, str(error))
        return Results(readings=readings, failures=failures)
