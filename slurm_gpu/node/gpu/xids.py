"""Read XIDs, which are errors reported by the driver, from an event set."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import pynvml

from slurm_gpu.node.gpu.nvml_calls import SUCCESS, WARNING, LogFunction, address, explained, function, meaning
from slurm_gpu.node.gpu.reading import DeviceProperties, Xid

_NO_INSTANCE = 0xFFFFFFFF
# The maximum number per sample, since a GPU may report XIDs faster than they are read.
_MOST = 64


class XidEvents:
    """The event set for all GPUs; `log` is a function returned by `once`."""

    def __init__(self, log: LogFunction) -> None:
        self._log = log
        self._set: Any = None
        self._kept: list[Xid] = []
        self._data = pynvml.c_nvmlEventData_t()
        self._gpus: Mapping[int | None, DeviceProperties] = {}
        self._instances: Mapping[tuple[str, int, int], str] = {}

    def listen(self, gpus: Mapping[str, tuple[Any, DeviceProperties]]) -> None:
        """Register for the events of the devices, whose handles and properties are given by UUID."""
        self._kept.extend(self._waiting())
        self.close()
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except Exception as error:  # any error of the binding disables XIDs
            self._log(WARNING, f"XIDs are not recorded: {explained(error)}")
            return
        whole = [(handle, facts) for handle, facts in gpus.values() if facts.parent is None]
        self._gpus = {address(handle): facts for handle, facts in whole}
        self._instances = {
            (facts.parent, facts.gpu_instance, facts.compute_instance): facts.uuid
            for _, facts in gpus.values()
            if facts.parent is not None
            and facts.gpu_instance is not None
            and facts.compute_instance is not None
        }
        for handle, facts in whole:
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            except Exception as error:
                self._log(WARNING, f"{facts.uuid}: XIDs are not recorded: {explained(error)}")

    def take(self) -> list[Xid]:
        """Return the XIDs since the last call, without waiting."""
        found = [*self._kept, *self._waiting()]
        self._kept.clear()
        return found

    def _waiting(self) -> list[Xid]:
        wait = function("nvmlEventSetWait_v2")
        found: list[Xid] = []
        if self._set is None or wait is None:
            return found
        for _ in range(_MOST):
            try:
                code = wait(self._set, ctypes.byref(self._data), 0)
            except Exception as error:
                self._log(WARNING, f"XIDs are not recorded: {explained(error)}")
                break
            if code != SUCCESS:
                if code != pynvml.NVML_ERROR_TIMEOUT:
                    self._log(WARNING, f"XIDs are not recorded: {meaning(code)}")
                break
            facts = self._gpus.get(address(self._data.device))
            if facts is not None and self._data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                found.append(Xid(self._of(facts.uuid), int(self._data.eventData), time.time()))
        return found

    def close(self) -> None:
        """Free the event set."""
        events, self._set = self._set, None
        free = function("nvmlEventSetFree")
        if events is not None and free is not None:
            try:
                free(events)
            except Exception as error:
                self._log(WARNING, f"NVML failed to free an event set: {explained(error)}")

    def _of(self, gpu: str) -> str:
        instance = self._data.gpuInstanceId, self._data.computeInstanceId
        return gpu if _NO_INSTANCE in instance else self._instances.get((gpu, *instance), gpu)
