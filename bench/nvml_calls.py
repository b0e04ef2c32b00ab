"""Measure wall and CPU time of each NVML function that slurm-gpud calls, on a real GPU.

Calls that are made once a second run with cold caches, so rounds are spaced out. The first call of each
function is left out.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

ROUNDS = 30
PAUSE_S = 0.15


def calls(handle: Any) -> dict[str, Callable[[], object]]:
    """Return the calls of one sample of slurm-gpud by name, and some that it avoids for their cost."""
    fields = [
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    ]
    recent_us = int((time.time() - 1) * 1e6)
    found: dict[str, Callable[[], object]] = {
        "nvmlDeviceGetMemoryInfo_v2": lambda: pynvml.nvmlDeviceGetMemoryInfo(
            handle, version=pynvml.nvmlMemory_v2
        ),
        "nvmlDeviceGetUtilizationRates": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "nvmlDeviceGetSamples": lambda: pynvml.nvmlDeviceGetSamples(
            handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, recent_us
        ),
        "nvmlDeviceGetProcessUtilization": lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, recent_us),
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(
            handle
        ),
        "nvmlDeviceGetPowerUsage": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "nvmlDeviceGetTemperature": lambda: pynvml.nvmlDeviceGetTemperature(
            handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "nvmlDeviceGetTemperatureV": lambda: pynvml.nvmlDeviceGetTemperatureV(
            handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "nvmlDeviceGetClockInfo": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(
            handle
        ),
        "nvmlDeviceGetTotalEnergyConsumption": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "nvmlDeviceGetTotalEccErrors": lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
        "nvmlDeviceGetMigMode": lambda: pynvml.nvmlDeviceGetMigMode(handle),
        "nvmlDeviceGetPcieThroughput": lambda: pynvml.nvmlDeviceGetPcieThroughput(
            handle, pynvml.NVML_PCIE_UTIL_RX_BYTES
        ),
        "nvmlDeviceGetHandleByIndex_v2": lambda: pynvml.nvmlDeviceGetHandleByIndex(0),
    }
    for field in fields:
        found[f"nvmlDeviceGetFieldValues [{field}]"] = _field_values(handle, [field])
    found[f"nvmlDeviceGetFieldValues {fields}"] = _field_values(handle, fields)
    return found


def _field_values(handle: Any, fields: list[int]) -> Callable[[], object]:
    return lambda: pynvml.nvmlDeviceGetFieldValues(handle, fields)


@contextlib.contextmanager
def gpm(handle: Any) -> Iterator[dict[str, Callable[[], object]]]:
    """Return the two GPM calls, if the GPU supports them."""
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        yield {}
        return
    before, after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handle, before)
    time.sleep(PAUSE_S)
    pynvml.nvmlGpmSampleGet(handle, after)
    wanted = pynvml.c_nvmlGpmMetricsGet_t()
    wanted.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    metrics = (
        pynvml.NVML_GPM_METRIC_SM_UTIL,
        pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    )
    wanted.numMetrics = len(metrics)
    for index, metric in enumerate(metrics):
        wanted.metrics[index].metricId = metric
    wanted.sample1, wanted.sample2 = before, after
    yield {
        "nvmlGpmSampleGet": lambda: pynvml.nvmlGpmSampleGet(handle, after),
        "nvmlGpmMetricsGet": lambda: pynvml.nvmlGpmMetricsGet(wanted),
    }
    pynvml.nvmlGpmSampleFree(before)
    pynvml.nvmlGpmSampleFree(after)


def measure(handle: Any) -> dict[str, dict[str, Any]]:
    """Return microseconds by function: median and maximum wall time, median CPU time; or the error."""
    with gpm(handle) as more:
        functions = {**calls(handle), **more}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
        errors: dict[str, str] = {}
        for _ in range(ROUNDS):
            time.sleep(PAUSE_S)
            for name, call in functions.items():
                if name in errors:
                    continue
                cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
                try:
                    call()
                except pynvml.NVMLError as error:
                    if error.value != pynvml.NVML_ERROR_NOT_FOUND:  # there are no newer samples
                        errors[name] = str(error)
                        continue
                took_ns = time.perf_counter_ns() - wall_ns
                times[name].append((took_ns / 1000, (time.thread_time_ns() - cpu_ns) / 1000))
    return {
        name: {"error": errors[name]} if name in errors else _summary(times[name][1:]) for name in functions
    }


def _summary(times: list[tuple[float, float]]) -> dict[str, Any]:
    wall, cpu = zip(*times, strict=True)
    return {
        "wall_us": round(statistics.median(wall), 1),
        "wall_us_max": round(max(wall), 1),
        "cpu_us": round(statistics.median(cpu), 1),
    }


def measure_start() -> dict[str, float]:
    """Return the time of nvmlInit and nvmlShutdown, as in each run of nvidia-smi, in microseconds."""
    wall, cpu = [], []
    for _ in range(5):
        cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        wall.append((time.perf_counter_ns() - wall_ns) / 1000)
        cpu.append((time.process_time_ns() - cpu_ns) / 1000)
    return {"wall_us": round(statistics.median(wall), 1), "cpu_us": round(statistics.median(cpu), 1)}
