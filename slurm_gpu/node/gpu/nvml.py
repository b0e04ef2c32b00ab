"""Find and read GPUs through NVML, and reinitialise NVML after a driver restart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pynvml

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.nvml_calls import WARNING, GoneError, LogFunction, explained, once, twice
from slurm_gpu.node.gpu.nvml_device import Arrays, NvmlDevice, since_boot_s
from slurm_gpu.node.gpu.nvml_facts import gpu_facts, instance_facts, instances
from slurm_gpu.node.gpu.reading import (
    DeviceProperties,
    Failure,
    ReadError,
    Reading,
    ReadRequest,
    Results,
    Xid,
)
from slurm_gpu.node.gpu.xids import XidEvents
from slurm_gpu.plausible import is_plausible

# A lost GPU may require reinitialising NVML, which interrupts GPM on other GPUs; this is the minimum time
# between two attempts.
_RENEW_S = 60.0


def _to_stderr(priority: int, text: str) -> None:
    print(f"<{priority}>{text}", file=sys.stderr, flush=True)


class NvmlReader:
    """Reads the GPUs and MIG instances of the loaded driver.

    `log` receives messages for the admin; `now_s` is Clock.monotonic. A call that hangs in the driver also
    blocks this object; see ReaderProcess.
    """

    def __init__(self, log: LogFunction = _to_stderr, now_s: Callable[[], float] = since_boot_s) -> None:
        self._log, self._once, self._now_s = log, once(log), now_s
        self._arrays = Arrays()
        self._xids = XidEvents(self._once)
        self._devices: dict[str, NvmlDevice] = {}
        self._silent: dict[int, Failure] = {}
        self._started = self._stale = False
        self._renew_at_s = 0.0

    def devices(self) -> Sequence[DeviceProperties]:
        """See Reader."""
        return [facts for _, found in self.find() for facts in found]

    @property
    def silent(self) -> Mapping[int, Failure]:
        """See Reader."""
        return self._silent

    def find(self, leave_out: Collection[int] = ()) -> Iterator[tuple[int, Sequence[DeviceProperties]]]:
        """Yield each NVML index with the GPU and its MIG instances, or with () if the GPU does not answer.

        Indices in `leave_out` are not accessed. Do not read devices until the iterator is exhausted. Raise
        NvmlError if the driver does not work.
        """
        count = self.start()
        before, self._devices = self._devices, {}
        for index in range(count):
            yield index, () if index in leave_out else self._find(index, before)
        self._close(before.values())
        self._xids.listen({uuid: (d.handle, d.facts) for uuid, d in self._devices.items()})

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        """See Reader."""
        readings: dict[str, Reading] = {}
        failures: dict[str, Failure] = {}
        for request in requests:
            outcome = self.read_one(request)
            if isinstance(outcome, Failure):
                failures[request.uuid] = outcome
            else:
                readings[request.uuid] = outcome
        detailed = not requests or any(request.detailed for request in requests)
        return Results(readings, failures, self.take_xids() if detailed else ())

    def take_xids(self) -> Sequence[Xid]:
        """Return the XIDs since the last call."""
        return self._xids.take()

    def index_of(self, uuid: str) -> int | None:
        """Return NVML's index of the device's GPU, or None if the device is unknown."""
        device = self._devices.get(uuid)
        return None if device is None else device.facts.index

    def read_one(self, request: ReadRequest) -> Reading | Failure:
        """Read one device."""
        device = self._devices.get(request.uuid)
        if device is None:
            return Failure(ReadError.LOST, "the driver does not list it")
        try:
            return device.read(request)
        except GoneError as error:
            self._renew(at_once=error.kind is ReadError.DRIVER)
            return Failure(error.kind, error.why)
        except Exception as error:  # any error of the binding affects only this reading
            self._once(WARNING, f"GPU {request.uuid} cannot be read: {type(error).__name__}")
            return Reading(self._now_s())

    def close(self) -> None:
        """Close all devices and shut down NVML."""
        self._close([self._xids, *self._devices.values()])
        self._devices = {}
        if self._started:
            self._started = False
            try:
                pynvml.nvmlShutdown()
            except Exception as error:  # any error of the binding; NVML is initialised again
                self._log(WARNING, f"NVML shutdown failed: {explained(error)}")

    def _close(self, opened: Iterable[XidEvents | NvmlDevice]) -> None:
        """Release the devices' resources in the driver."""
        for item in opened:
            try:
                item.close()
            except Exception as error:  # any error of the binding
                self._once(WARNING, f"NVML failed to release resources: {type(error).__name__}")

    def start(self) -> int:
        """Initialise NVML if necessary and return the number of GPUs; raise NvmlError if this fails."""
        if self._stale:
            self.close()
            self._stale = False
        count = 0
        try:
            if not self._started:
                pynvml.nvmlInit()
                self._started = True
            for _ in range(2):
                count = int(pynvml.nvmlDeviceGetCount())
                if is_plausible("gpu_count", count):
                    return count
        except Exception as error:  # any error of the binding
            self._stale = True
            raise NvmlError(f"NVML: {explained(error)}") from error
        raise NvmlError(f"NVML: implausible number of GPUs: {count}")

    def _renew(self, *, at_once: bool) -> None:
        """Reinitialise NVML before the next search for devices."""
        now_s = self._now_s()
        if at_once or now_s >= self._renew_at_s:
            self._stale, self._renew_at_s = True, now_s + _RENEW_S

    def _find(self, index: int, before: dict[str, NvmlDevice]) -> Sequence[DeviceProperties]:
        try:
            gpu = twice(pynvml.nvmlDeviceGetHandleByIndex, index)
            facts = gpu_facts(gpu, index)
            found = [(gpu, facts, None), *((*pair, gpu) for pair in self._instances(gpu, facts))]
            devices = {
                its.uuid: self._device(handle, its, parent, before.pop(its.uuid, None))
                for handle, its, parent in found
            }
        except Exception as error:  # any error of the binding; the other GPUs continue
            self._renew(at_once=False)
            if index not in self._silent:
                self._silent[index] = Failure(ReadError.LOST, explained(error))
                self._log(WARNING, f"GPU with NVML index {index} does not answer: {explained(error)}")
            return ()
        self._silent.pop(index, None)
        self._devices |= devices
        return [its for _, its, _ in found]

    def _instances(self, gpu: Any, facts: DeviceProperties) -> Iterator[tuple[Any, DeviceProperties]]:
        """Yield the MIG instances of a GPU; raise GoneError if the GPU is gone."""
        for instance in instances(gpu):
            try:
                yield instance, instance_facts(instance, facts)
            except NvmlError as error:
                self._once(WARNING, f"a MIG instance of GPU {facts.uuid} is left out: {error}")

    def _device(
        self, handle: Any, facts: DeviceProperties, parent: Any, known: NvmlDevice | None
    ) -> NvmlDevice:
        if known is not None and known.is_same(handle, facts):
            return known
        if known is not None:
            known.close()
        return NvmlDevice(handle, facts, parent, self._arrays, self._once, self._now_s)
