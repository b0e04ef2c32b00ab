"""Read GPM, which measures the activity of a GPU or MIG instance (Hopper or later) between two samples.

GPM's PCIe rates are also read, because the driver's byte counters have 32 bits and can wrap more than once
per second.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import pynvml

from slurm_gpu.node.gpu.nvml_calls import SUCCESS, NvmlCalls, function
from slurm_gpu.node.gpu.plausibility import PlausibilityFilter
from slurm_gpu.node.gpu.reading import Activity

# The key in NvmlCalls for a device without GPM.
_SUPPORT = "GPM"
# The driver rejects samples that are 0.1 s apart or less.
_MIN_S = 0.11
# The metrics in percent by their name in Activity: NVML_GPM_METRIC_… of nvml.h.
_PARTS = {"sm_active": 2, "sm_occupancy": 3, "tensor": 5, "dram": 10}
# The metrics in MiB/s by their name in Activity.
_RATES = {"pcie_tx_bytes_per_s": 20, "pcie_rx_bytes_per_s": 21}
_METRICS = {**_PARTS, **_RATES}
# The names of quantities, with their units as suffixes, by the name of the field in Activity.
_QUANTITIES = {name: f"{name}_frac" for name in _PARTS} | {name: name for name in _RATES}
# Tolerance for rounding errors, as a fraction or in MiB/s: a value may be slightly below 0, and a fraction
# slightly above 1.
_ROUNDING = 1e-3


@functools.cache
def _metrics() -> Any:
    """Return the argument of nvmlGpmMetricsGet (19 kB); all devices share it."""
    return pynvml.c_nvmlGpmMetricsGet_t()


def _asking(metrics: Any, before: Any, after: Any) -> Any:
    """Set all input fields of the argument, which the driver may have overwritten."""
    metrics.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    metrics.numMetrics = len(_METRICS)
    metrics.sample1, metrics.sample2 = before, after
    for metric, number in zip(metrics.metrics, _METRICS.values(), strict=False):
        metric.metricId = number
    return ctypes.byref(metrics)


class Gpm:
    """Takes GPM samples of one device, alternately into two buffers of the driver.

    `calls` calls NVML's functions for the GPU; `gpu_instance` is the ID of the MIG instance, if any.
    """

    def __init__(self, calls: NvmlCalls, gpu_instance: int | None, screen: PlausibilityFilter) -> None:
        self.calls, self._instance, self._screen = calls, gpu_instance, screen
        self._samples: list[Any] = []
        self._at_s: float | None = None

    def read(self, now_s: float) -> Activity | None:
        """Return the activity since the previous sample. Raise GoneError if the device is gone."""
        if self._at_s is not None and now_s - self._at_s < _MIN_S:
            return None
        if not self._samples and not self._start():
            return None
        before, after = self._samples
        if not self._take(after):
            return None
        self._samples = [after, before]
        before_s, self._at_s = self._at_s, now_s
        if before_s is None:
            return None
        return self._screen.ask(self._between, before, after, now_s - before_s)

    def close(self) -> None:
        """Free the driver's buffers."""
        free = function("nvmlGpmSampleFree")
        for sample in self._samples:
            if free is not None:
                free(sample)
        self._samples, self._at_s = [], None

    def _start(self) -> bool:
        if self.calls.skips(_SUPPORT):
            return False
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        if not self.calls.gives("nvmlGpmQueryDeviceSupport", ctypes.byref(support)):
            return False
        if not support.isSupportedDevice:
            self.calls.failed(_SUPPORT, pynvml.NVML_ERROR_NOT_SUPPORTED)
            return False
        allocate = function("nvmlGpmSampleAlloc")
        while allocate is not None and len(self._samples) < 2:
            sample = pynvml.c_nvmlGpmSample_t()
            if allocate(ctypes.byref(sample)) != SUCCESS:
                break
            self._samples.append(sample)
        if len(self._samples) < 2:
            self.close()
        return bool(self._samples)

    def _take(self, sample: Any) -> bool:
        if self._instance is None:
            return self.calls.gives("nvmlGpmSampleGet", sample)
        return self.calls.gives("nvmlGpmMigSampleGet", self._instance, sample)

    def _between(self, before: Any, after: Any, seconds: float) -> Activity | None:
        metrics, get = _metrics(), function("nvmlGpmMetricsGet")
        if get is None or SUCCESS not in (get(_asking(metrics, before, after)) for _ in range(2)):
            return None
        found: dict[str, float] = {}
        for name, metric in zip(_METRICS, metrics.metrics, strict=False):
            if metric.nvmlReturn != SUCCESS:
                continue
            is_part = name in _PARTS
            value = metric.value / 100 if is_part else metric.value
            if -_ROUNDING <= value < 0:
                value = 0.0
            elif is_part and 1 < value <= 1 + _ROUNDING:
                value = 1.0
            if not is_part:
                value *= 2**20
            if self._screen.number(name, value, _QUANTITIES[name]) is not None:
                found[name] = value
        return Activity(seconds, **found) if found else None
