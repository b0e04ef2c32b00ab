"""GPM: how much of a Hopper or later GPU, or of a MIG instance, was at work between two samples.

And what it moved over PCIe: the driver's byte counters have 32 bits, which at 1 Hz is too few to tell.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import pynvml

from slurm_gpu.node.gpu.nvmlcalls import SUCCESS, Calls, function
from slurm_gpu.node.gpu.reading import Activity

# The driver refuses samples that are not more than 0.1 s apart.
_MIN_S = 0.11
# By the name in Activity: nvml.h's NVML_GPM_METRIC_…, in percent.
_PARTS = {"sm_active": 2, "sm_occupancy": 3, "tensor": 5, "dram": 10}
# The same, in MiB/s.
_RATES = {"pcie_tx_bytes_per_s": 20, "pcie_rx_bytes_per_s": 21}
_METRICS = {**_PARTS, **_RATES}


@functools.cache
def _metrics() -> Any:
    """The argument of nvmlGpmMetricsGet (19 kB), one for all devices."""
    metrics = pynvml.c_nvmlGpmMetricsGet_t()
    metrics.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    metrics.numMetrics = len(_METRICS)
    for metric, number in zip(metrics.metrics, _METRICS.values(), strict=False):
        metric.metricId = number
    return metrics


class Gpm:
    """Samples of one device, taken by turns into two buffers of the driver's.

    `calls` are those of the GPU, `gpu_instance` is the MIG instance's id if it is one.
    """

    def __init__(self, calls: Calls, gpu_instance: int | None) -> None:
        self.calls, self._instance = calls, gpu_instance
        self._samples: list[Any] = []
        self._at_s: float | None = None

    def read(self, now_s: float) -> Activity | None:
        """Since the sample before this one, at Clock.monotonic() `now_s`; raises GoneError."""
        if self._at_s is not None and now_s - self._at_s < _MIN_S:
            return None
        if not self._samples and not self._start():
            return None
        before, after = self._samples
        if not self._take(after):
            return None
        self._samples = [after, before]
        before_s, self._at_s = self._at_s, now_s
        return None if before_s is None else self._between(before, after, now_s - before_s)

    def close(self) -> None:
        """Give the driver's buffers back."""
        free = function("nvmlGpmSampleFree")
        for sample in self._samples:
            if free is not None:
                free(sample)
        self._samples, self._at_s = [], None

    def _start(self) -> bool:
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        if not self.calls.gives("nvmlGpmQueryDeviceSupport", ctypes.byref(support)):
            return False
        if not support.isSupportedDevice:
            self.calls.failed("nvmlGpmQueryDeviceSupport", pynvml.NVML_ERROR_NOT_SUPPORTED)
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
        metrics.sample1, metrics.sample2 = before, after
        if get is None or get(ctypes.byref(metrics)) != SUCCESS:
            return None
        found: dict[str, float] = {}
        for name, metric in zip(_METRICS, metrics.metrics, strict=False):
            if metric.nvmlReturn != SUCCESS or not math.isfinite(metric.value):
                continue
            if name in _PARTS:
                found[name] = min(1.0, max(0.0, metric.value / 100))
            else:
                found[name] = max(0.0, metric.value * 2**20)
        return Activity(seconds, **found) if found else None
