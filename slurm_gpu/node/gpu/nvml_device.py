"""Read one GPU or MIG instance through NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer, string_at
from struct import Struct
from typing import Any

import pynvml

from slurm_gpu.node.gpu.field_values import FieldValues
from slurm_gpu.node.gpu.gpm import Gpm
from slurm_gpu.node.gpu.nvml_calls import (
    INSUFFICIENT_SIZE,
    NOT_FOUND,
    SUCCESS,
    UNKNOWN,
    WARNING,
    GoneError,
    LogFunction,
    NvmlCalls,
    address,
    meaning,
)
from slurm_gpu.node.gpu.plausibility import PlausibilityFilter
from slurm_gpu.node.gpu.reading import (
    Activity,
    DeviceCounter,
    DeviceMemory,
    DeviceProperties,
    GpuProcess,
    ProcessSample,
    ReadError,
    Reading,
    ReadRequest,
    UtilizationSample,
)
from slurm_gpu.plausible import greatest_total, is_plausible

_UNKNOWN_MEMORY = 2**64 - 1
_MEMORY_V1, _MEMORY_V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"
# nvmlSample_t by value type, for `struct`: reading 60 samples with ctypes takes ten times as long.
_SAMPLES: Mapping[int, Struct] = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: Struct("=QI4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_DOUBLE: Struct("=Qd"),
}
# nvml.h: nvmlClocksEventReason…; low clocks of an idle GPU do not count as throttling.
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
# The driver supports these functions only for whole GPUs.
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
    """Buffers for the driver's lists, shared by all devices; a buffer that is too small is replaced."""

    def __init__(self) -> None:
        self.samples: Any = (pynvml.c_nvmlSample_t * 128)()
        self.processes: Any = (pynvml.c_nvmlProcessInfo_t * 64)()
        self.process_samples: Any = (pynvml.c_nvmlProcessUtilizationSample_t * 256)()


def since_boot_s() -> float:
    """Return the same time as Clock.monotonic() without importing the module that defines Clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NvmlDevice:
    """Reads one device; `parent` is the GPU's handle if the device is a MIG instance, otherwise None."""

    def __init__(
        self,
        handle: Any,
        facts: DeviceProperties,
        parent: Any,
        arrays: Arrays,
        log: LogFunction,
        now_s: Callable[[], float] = since_boot_s,
    ) -> None:
        self.facts, self.handle = facts, handle
        self._now_s = now_s
        self._arrays, self._parent = arrays, parent
        self._log, self._screen = log, PlausibilityFilter(facts.uuid, log)
        self._calls = NvmlCalls(handle, facts.uuid, log)
        gpm_calls = self._calls if parent is None else NvmlCalls(parent, facts.uuid, log)
        self._gpm = Gpm(gpm_calls, facts.gpu_instance, self._screen)
        self._fields = FieldValues(self._calls)
        if parent is not None:
            self._calls.leave_out(*_NOT_OF_INSTANCES)
        self._memory_v1, self._memory_v2 = pynvml.c_nvmlMemory_t(), pynvml.c_nvmlMemory_v2_t()
        self._total = facts.memory_bytes
        self._rates = pynvml.c_nvmlUtilization_t()
        self._uuid = create_string_buffer(pynvml.NVML_DEVICE_UUID_V2_BUFFER_SIZE)
        self._number, self._long, self._type = c_uint(), c_ulonglong(), c_uint()
        # The counters of the last detailed reading, including implausible ones.
        self._counted: dict[str, DeviceCounter] = {}
        self._raw: dict[str, DeviceCounter] = {}
        self._counted_s = 0.0

    def read(self, request: ReadRequest) -> Reading:
        """Read the requested fields; raise GoneError if the device is gone."""
        at_s, ask = self._now_s(), self._screen.ask
        if request.detailed:
            self._check_identity()
        memory = ask(self._memory)
        ring_us, process_us = request.ring_after_us, request.process_ring_after_us
        ring = None if ring_us is None else ask(self._ring, ring_us)
        process_ring = None if process_us is None else ask(self._process_ring, process_us)
        processes = ask(self._processes) if request.processes else None
        if not request.detailed:
            wants_util = ring_us is not None and ring is None
            util_pct, _ = (ask(self._utilization) if wants_util else None) or (None, None)
            implausible = self._screen.take()
            return Reading(at_s, memory, processes, ring, process_ring, util_pct, implausible=implausible)
        util_pct, mem_util_pct = ask(self._utilization) or (None, None)
        return Reading(
            at_s,
            memory,
            processes,
            ring,
            process_ring,
            util_pct,
            mem_util_pct,
            power_w=ask(self._power_w),
            temp_c=ask(self._temp_c),
            sm_clock_mhz=ask(self._sm_clock_mhz),
            throttle=ask(self._throttle),
            activity=self._activity(),
            **self._plausible_counters(at_s),
            implausible=self._screen.take(),
        )

    def is_same(self, handle: Any, facts: DeviceProperties) -> bool:
        """Return whether a found device is this one; if so, update `facts` and retry unsupported calls."""
        same = address(handle) == address(self.handle)
        if not same or facts._replace(power_limit_w=None) != self.facts._replace(power_limit_w=None):
            return False
        self.facts = facts
        self._calls.try_again()
        self._gpm.calls.try_again()
        self._fields = FieldValues(self._calls)
        return True

    def close(self) -> None:
        """Release the device's resources in the driver."""
        self._gpm.close()

    def _check_identity(self) -> None:
        """Check that the handle of a MIG instance has not been reused for another instance."""
        if self._parent is None:
            return
        for _ in range(2):
            code = self._calls.call("nvmlDeviceGetUUID", self._uuid, len(self._uuid))
            if code == SUCCESS and self._uuid.value == self.facts.uuid.encode():
                return
        raise GoneError(ReadError.LOST, "the MIG instance is gone")

    def _memory(self) -> DeviceMemory | None:
        """Read memory with version 2 of the call, which reports the driver's reserve, or with version 1."""
        info = self._memory_v2
        info.version = pynvml.nvmlMemory_v2
        code = self._calls.call(_MEMORY_V2, byref(info))
        if code != SUCCESS and self._calls.is_out(_MEMORY_V2):
            info = self._memory_v1
            code = self._calls.call(_MEMORY_V1, byref(info))
        if code == UNKNOWN:
            # Every device supports this call; after a driver reload it fails with UNKNOWN.
            raise GoneError(ReadError.DRIVER, meaning(code))
        if self._parent is not None and code in (NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            raise GoneError(ReadError.LOST, f"the MIG instance is gone: {meaning(code)}")
        if code != SUCCESS:
            return None
        if not 0 <= info.used <= info.total or info.total == 0:
            self._screen.reject("memory", info.used)
            return None
        if self._screen.number("memory", info.total, "memory_bytes") is None:
            return None
        # Total memory does not change, so a different value is accepted only if it is read twice in a row.
        total_before, self._total = self._total, info.total
        if info.total not in (self.facts.memory_bytes, total_before) and total_before is not None:
            self._screen.reject("memory", info.total)
            return None
        return DeviceMemory(info.used, info.total)

    def _ring(self, after_us: int) -> Sequence[UtilizationSample] | None:
        """Read nvmlDeviceGetSamples, oldest first; return [] if there are no newer samples (NOT_FOUND).

        Also return [] for an implausible answer, since the next sample reads the buffer again.
        """
        name, kind = "nvmlDeviceGetSamples", pynvml.NVML_GPU_UTILIZATION_SAMPLES
        after, count = c_ulonglong(after_us), self._number
        while True:
            array = self._arrays.samples
            count.value = len(array)
            code = self._calls.call(name, kind, after, byref(self._type), byref(count), array)
            if not (code == INSUFFICIENT_SIZE or (code == SUCCESS and count.value >= len(array))):
                break
            if self._screen.number("ring", max(count.value, 2 * len(array)), "list_length") is None:
                return []
            self._arrays.samples = (pynvml.c_nvmlSample_t * (2 * len(array)))()
        if code != SUCCESS:
            return None if self._calls.is_out(name) else []
        sample = _SAMPLES.get(self._type.value)
        if sample is None:
            self._screen.reject("ring", self._type.value)
            return []
        found = []
        for at_us, value in sorted(sample.iter_unpack(string_at(array, count.value * sample.size))):
            if self._screen.number("ring", at_us, "stamp_us") is None:
                return []
            if at_us > after_us:
                found.append(UtilizationSample(at_us, self._screen.number("util_pct", float(value))))
        return found

    def _process_ring(self, after_us: int) -> Sequence[ProcessSample] | None:
        """Read nvmlDeviceGetProcessUtilization; the driver fills unused entries with zeros or garbage.

        Return None if the call fails or if a used entry is implausible, because its process is then unknown.
        """
        after, count = c_ulonglong(after_us), self._number
        while True:
            array = self._arrays.process_samples
            count.value = len(array)
            code = self._calls.call("nvmlDeviceGetProcessUtilization", array, byref(count), after)
            if code != INSUFFICIENT_SIZE:
                break
            length = max(2 * len(array), count.value)
            if self._screen.number("process_ring", length, "list_length") is None:
                return None
            self._arrays.process_samples = (pynvml.c_nvmlProcessUtilizationSample_t * length)()
        if code == NOT_FOUND:
            return []
        if code != SUCCESS or self._is_overfull("process_ring", count.value, array):
            return None
        found = []
        for sample in array[: count.value]:
            pid, at_us, percent = sample.pid, sample.timeStamp, float(sample.smUtil)
            if not pid or at_us <= after_us or not is_plausible("stamp_us", at_us):
                continue
            if not is_plausible("pid", pid) or not is_plausible("util_pct", percent):
                self._screen.reject("process_ring", percent)
                return None
            found.append(ProcessSample(pid, at_us, percent))
        return found

    def _processes(self) -> Sequence[GpuProcess] | None:
        """Read nvmlDeviceGetComputeRunningProcesses."""
        count = self._number
        while True:
            array = self._arrays.processes
            count.value = len(array)
            code = self._calls.call("nvmlDeviceGetComputeRunningProcesses_v3", byref(count), array)
            if code != INSUFFICIENT_SIZE:
                break
            length = max(2 * len(array), count.value)
            if self._screen.number("processes", length, "list_length") is None:
                return None
            self._arrays.processes = (pynvml.c_nvmlProcessInfo_t * length)()
        if code != SUCCESS or self._is_overfull("processes", count.value, array):
            return None
        found = []
        for process in array[: count.value]:
            if self._screen.number("processes", process.pid, "pid") is None:
                return None
            used = process.usedGpuMemory
            if used is not None and used != _UNKNOWN_MEMORY:
                used = self._screen.number("process_memory", used, "memory_bytes")
            else:
                used = None
            found.append(GpuProcess(process.pid, used))
        return found

    def _is_overfull(self, field: str, count: int, array: Any) -> bool:
        """Return whether the driver reports more entries than fit into the array."""
        if count > len(array):
            self._screen.reject(field, count)
        return count > len(array)

    def _utilization(self) -> tuple[float | None, float | None]:
        """Read the utilisation of the SMs and of the memory controller."""
        if not self._calls.gives("nvmlDeviceGetUtilizationRates", byref(self._rates)):
            return None, None
        return (
            self._screen.number("util_pct", float(self._rates.gpu)),
            self._screen.number("mem_util_pct", float(self._rates.memory)),
        )

    def _power_w(self) -> float | None:
        milliwatts = self._number
        if not self._calls.gives("nvmlDeviceGetPowerUsage", byref(milliwatts)):
            return None
        return self._screen.number("power_w", milliwatts.value / 1000)

    def _temp_c(self) -> float | None:
        newer = getattr(pynvml, "c_nvmlTemperature_v1_t", None)
        if newer is not None:
            reading = newer(version=pynvml.nvmlTemperature_v1, sensorType=pynvml.NVML_TEMPERATURE_GPU)
            if self._calls.gives("nvmlDeviceGetTemperatureV", byref(reading)):
                return self._screen.number("temp_c", float(reading.temperature))
        celsius = self._number
        if not self._calls.gives("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU, byref(celsius)):
            return None
        return self._screen.number("temp_c", float(celsius.value))

    def _sm_clock_mhz(self) -> float | None:
        megahertz = self._number
        if not self._calls.gives("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, byref(megahertz)):
            return None
        return self._screen.number("sm_clock_mhz", float(megahertz.value))

    def _throttle(self) -> Sequence[str] | None:
        bits = self._long
        if not self._calls.gives(
            "nvmlDeviceGetCurrentClocksEventReasons", byref(bits)
        ) and not self._calls.gives("nvmlDeviceGetCurrentClocksThrottleReasons", byref(bits)):
            return None
        if self._screen.number("throttle", bits.value, "throttle_bits") is None:
            return None
        return [name for bit, name in _REASONS.items() if bits.value & bit]

    def _activity(self) -> Activity | None:
        """Read GPM once, because GPM cannot be read again immediately."""
        try:
            return self._gpm.read(self._now_s())
        except GoneError:
            raise
        except Exception as error:
            self._log(WARNING, f"GPU {self.facts.uuid}: activity cannot be read: {type(error).__name__}")
            return None

    def _plausible_counters(self, at_s: float) -> dict[str, DeviceCounter]:
        """Return the counters except those that grew implausibly fast since the last reading."""
        self._raw = {}
        found = self._screen.ask(self._growing_counters, at_s) or {}
        if self._raw:
            self._counted, self._counted_s = self._raw, at_s
        return found

    def _growing_counters(self, at_s: float) -> dict[str, DeviceCounter]:
        self._raw = self._counters()
        found = {}
        for name, counter in self._raw.items():
            before = self._counted.get(name)
            grown = 0 if before is None or before.bits != counter.bits else counter.value - before.value
            if grown > greatest_total(name, at_s - self._counted_s):
                self._screen.reject(name, grown)
            else:
                found[name] = counter
        return found

    def _counters(self) -> dict[str, DeviceCounter]:
        """Return the counter fields of Reading that the device has."""
        found = dict(self._fields.read())
        if "energy_mj" not in found and not self._fields.has("energy_mj"):
            millijoules = self._long
            if self._calls.gives("nvmlDeviceGetTotalEnergyConsumption", byref(millijoules)):
                found["energy_mj"] = DeviceCounter(millijoules.value)
        for name, kind in _ECC.items():
            if name in found or self._fields.has(name):
                continue
            errors = self._long
            if self._calls.gives(
                "nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC, byref(errors)
            ):
                found[name] = DeviceCounter(errors.value)
        return found
