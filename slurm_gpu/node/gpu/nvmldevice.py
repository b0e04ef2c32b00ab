"""One GPU or MIG instance as NVML shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer, string_at
from struct import Struct
from typing import Any

import pynvml

from slurm_gpu.node.gpu.fieldvalues import FieldValues
from slurm_gpu.node.gpu.gpm import Gpm
from slurm_gpu.node.gpu.nvmlcalls import (
    INSUFFICIENT_SIZE,
    NOT_FOUND,
    SUCCESS,
    UNKNOWN,
    Calls,
    GoneError,
    Tell,
    address,
    meaning,
)
from slurm_gpu.node.gpu.reading import (
    Counter,
    Facts,
    Memory,
    Process,
    ProcessSample,
    Reading,
    Request,
    Trouble,
    UtilizationSample,
)

_PERCENT_MAX = 100
_NO_MEMORY_TOLD = 2**64 - 1
_MEMORY_V1, _MEMORY_V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"
# nvmlSample_t by the type of its value, for `struct`: reading 60 of them by ctypes takes ten times as long.
_SAMPLES: Mapping[int, Struct] = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: Struct("=QI4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_DOUBLE: Struct("=Qd"),
}
# nvml.h: nvmlClocksEventReason…; an idle GPU's low clocks are no throttling.
_REASONS = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_ECC = {"ecc_corrected": 0, "ecc_uncorrected": 1}
# The driver tells these of whole GPUs only.
_NOT_OF_INSTANCES = (
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTotalEccErrors",
)


class Arrays:
    """What the driver writes lists into: one of each for all devices, longer once one was too short."""

    def __init__(self) -> None:
        self.samples: Any = (pynvml.c_nvmlSample_t * 128)()
        self.processes: Any = (pynvml.c_nvmlProcessInfo_t * 64)()
        self.process_samples: Any = (pynvml.c_nvmlProcessUtilizationSample_t * 256)()


def since_boot_s() -> float:
    """Clock.monotonic(), without the module for it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NvmlDevice:
    """Reads one device; `parent` is the handle of the GPU of a MIG instance, `now_s` Clock.monotonic."""

    def __init__(
        self,
        handle: Any,
        facts: Facts,
        parent: Any,
        arrays: Arrays,
        tell: Tell,
        now_s: Callable[[], float] = since_boot_s,
    ) -> None:
        self.facts, self.handle = facts, handle
        self._now_s = now_s
        self._arrays, self._parent = arrays, parent
        self._calls = Calls(handle, facts.uuid, tell)
        gpm_calls = self._calls if parent is None else Calls(parent, facts.uuid, tell)
        self._gpm = Gpm(gpm_calls, facts.gpu_instance)
        self._fields = FieldValues(self._calls)
        if parent is not None:
            self._calls.leave_out(*_NOT_OF_INSTANCES)
        self._memory_v1, self._memory_v2 = pynvml.c_nvmlMemory_t(), pynvml.c_nvmlMemory_v2_t()
        self._memory_v2.version = pynvml.nvmlMemory_v2
        self._rates = pynvml.c_nvmlUtilization_t()
        self._uuid = create_string_buffer(pynvml.NVML_DEVICE_UUID_V2_BUFFER_SIZE)
        self._number, self._long, self._type = c_uint(), c_ulonglong(), c_uint()

    def read(self, request: Request) -> Reading:
        """What is asked for; raises GoneError."""
        at_s = self._now_s()
        if request.detailed:
            self._check_identity()
        memory = self._memory()
        ring_us, process_us = request.ring_after_us, request.process_ring_after_us
        ring = None if ring_us is None else self._ring(ring_us)
        process_ring = None if process_us is None else self._process_ring(process_us)
        processes = self._processes() if request.processes else None
        if not request.detailed:
            util_pct = self._utilization()[0] if ring_us is not None and ring is None else None
            return Reading(at_s, memory, processes, ring, process_ring, util_pct)
        util_pct, mem_util_pct = self._utilization()
        return Reading(
            at_s,
            memory,
            processes,
            ring,
            process_ring,
            util_pct,
            mem_util_pct,
            power_w=self._power_w(),
            temp_c=self._temp_c(),
            sm_clock_mhz=self._sm_clock_mhz(),
            throttle=self._throttle(),
            activity=self._gpm.read(self._now_s()),
            **self._counters(),
        )

    def is_same(self, handle: Any, facts: Facts) -> bool:
        """Is it what was found now? It goes on then, and asks again for what it could not do."""
        same = address(handle) == address(self.handle)
        if not same or facts._replace(power_limit_w=None) != self.facts._replace(power_limit_w=None):
            return False
        self.facts = facts
        self._calls.try_again()
        self._gpm.calls.try_again()
        self._fields = FieldValues(self._calls)
        return True

    def close(self) -> None:
        """Give back what the driver holds for it."""
        self._gpm.close()

    def _check_identity(self) -> None:
        """The handle of a MIG instance that is gone may be that of another one now."""
        if self._parent is None:
            return
        code = self._calls.call("nvmlDeviceGetUUID", self._uuid, len(self._uuid))
        if code != SUCCESS or self._uuid.value.decode("utf-8", "replace") != self.facts.uuid:
            raise GoneError(Trouble.LOST, "the MIG instance is gone")

    def _memory(self) -> Memory | None:
        """By the second version, which counts the driver's reserve apart, else by the first."""
        info = self._memory_v2
        code = self._calls.call(_MEMORY_V2, byref(info))
        if code != SUCCESS and self._calls.is_out(_MEMORY_V2):
            info = self._memory_v1
            code = self._calls.call(_MEMORY_V1, byref(info))
        if code == UNKNOWN:
            # What every device can tell has failed: after a reload of the driver that is all it says.
            raise GoneError(Trouble.DRIVER, meaning(code))
        if code == NOT_FOUND or (code == pynvml.NVML_ERROR_INVALID_ARGUMENT and self._parent is not None):
            raise GoneError(Trouble.LOST, f"the MIG instance is gone: {meaning(code)}")
        return Memory(info.used, info.total) if code == SUCCESS else None

    def _ring(self, after_us: int) -> Sequence[UtilizationSample] | None:
        """By nvmlDeviceGetSamples, oldest first; NOT_FOUND means that the ring holds nothing newer."""
        kind, after = pynvml.NVML_GPU_UTILIZATION_SAMPLES, c_ulonglong(after_us)
        while True:
            array, count = self._arrays.samples, self._number
            count.value = len(array)
            code = self._calls.call(
                "nvmlDeviceGetSamples", kind, after, byref(self._type), byref(count), array
            )
            if code == INSUFFICIENT_SIZE or (code == SUCCESS and count.value >= len(array)):
                self._arrays.samples = (pynvml.c_nvmlSample_t * (2 * len(array)))()
                continue
            break
        if code == NOT_FOUND:
            return []
        sample = _SAMPLES.get(self._type.value)
        if code != SUCCESS or sample is None:
            return None
        return [
            UtilizationSample(at_us, float(percent))
            for at_us, percent in sorted(sample.iter_unpack(string_at(array, count.value * sample.size)))
            if at_us > after_us and percent <= _PERCENT_MAX
        ]

    def _process_ring(self, after_us: int) -> Sequence[ProcessSample] | None:
        """By nvmlDeviceGetProcessUtilization; the driver fills unused entries with zeros or rubbish."""
        after = c_ulonglong(after_us)
        while True:
            array, count = self._arrays.process_samples, self._number
            count.value = len(array)
            code = self._calls.call("nvmlDeviceGetProcessUtilization", array, byref(count), after)
            if code != INSUFFICIENT_SIZE:
                break
            length = max(2 * len(array), count.value)
            self._arrays.process_samples = (pynvml.c_nvmlProcessUtilizationSample_t * length)()
        if code == NOT_FOUND:
            return []
        if code != SUCCESS:
            return None
        found = []
        for sample in array[: count.value]:
            pid, at_us, percent = sample.pid, sample.timeStamp, sample.smUtil
            if pid > 0 and at_us > after_us and percent <= _PERCENT_MAX:
                found.append(ProcessSample(pid, at_us, float(percent)))
        return found

    def _processes(self) -> Sequence[Process] | None:
        """By nvmlDeviceGetComputeRunningProcesses."""
        while True:
            array, count = self._arrays.processes, self._number
            count.value = len(array)
            code = self._calls.call("nvmlDeviceGetComputeRunningProcesses_v3", byref(count), array)
            if code != INSUFFICIENT_SIZE:
                break
            length = max(2 * len(array), count.value)
            self._arrays.processes = (pynvml.c_nvmlProcessInfo_t * length)()
        if code != SUCCESS:
            return None
        return [
            Process(p.pid, None if p.usedGpuMemory in (None, _NO_MEMORY_TOLD) else p.usedGpuMemory)
            for p in array[: count.value]
        ]

    def _utilization(self) -> tuple[float | None, float | None]:
        """Of the SMs and of the memory controller."""
        if not self._calls.gives("nvmlDeviceGetUtilizationRates", byref(self._rates)):
            return None, None
        return float(self._rates.gpu), float(self._rates.memory)

    def _power_w(self) -> float | None:
        milliwatts = self._number
        if not self._calls.gives("nvmlDeviceGetPowerUsage", byref(milliwatts)):
            return None
        return milliwatts.value / 1000

    def _temp_c(self) -> float | None:
        newer = getattr(pynvml, "c_nvmlTemperature_v1_t", None)
        if newer is not None:
            reading = newer(version=pynvml.nvmlTemperature_v1, sensorType=pynvml.NVML_TEMPERATURE_GPU)
            if self._calls.gives("nvmlDeviceGetTemperatureV", byref(reading)):
                return float(reading.temperature)
        celsius = self._number
        if not self._calls.gives("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU, byref(celsius)):
            return None
        return float(celsius.value)

    def _sm_clock_mhz(self) -> float | None:
        megahertz = self._number
        if not self._calls.gives("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, byref(megahertz)):
            return None
        return float(megahertz.value)

    def _throttle(self) -> Sequence[str] | None:
        bits = self._long
        if not self._calls.gives(
            "nvmlDeviceGetCurrentClocksEventReasons", byref(bits)
        ) and not self._calls.gives("nvmlDeviceGetCurrentClocksThrottleReasons", byref(bits)):
            return None
        return [name for bit, name in _REASONS.items() if bits.value & bit]

    def _counters(self) -> dict[str, Counter]:
        """All fields of Reading that are counters, as far as the device has them."""
        found = dict(self._fields.read())
        if "energy_mj" not in found and not self._fields.has("energy_mj"):
            millijoules = self._long
            if self._calls.gives("nvmlDeviceGetTotalEnergyConsumption", byref(millijoules)):
                found["energy_mj"] = Counter(millijoules.value)
        for name, kind in _ECC.items():
            if name in found or self._fields.has(name):
                continue
            errors = self._long
            if self._calls.gives(
                "nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC, byref(errors)
            ):
                found[name] = Counter(errors.value)
        return found
