"""GPUs through NVIDIA's library: finds them, reads them, and starts anew after the driver did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pynvml

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.nvml_calls import WARNING, GoneError, Tell, explained, once, twice
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

# A lost GPU may need the library to be initialised anew, which costs the others their GPM: not more often.
_RENEW_S = 60.0


def _to_stderr(priority: int, text: str) -> None:
    print(f"<{priority}>{text}", file=sys.stderr, flush=True)


class NvmlReader:
    """The GPUs and MIG instances that the loaded driver shows.

    `tell` takes what the admin should know, `now_s` is Clock.monotonic.

    A call that hangs in the driver hangs here: see ReaderProcess.
    """

    def __init__(self, tell: Tell = _to_stderr, now_s: Callable[[], float] = since_boot_s) -> None:
        self._tell, self._once, self._now_s = tell, once(tell), now_s
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
        """By NVML's index: the GPU with its MIG instances, nothing where it does not answer.

        Raises NvmlError. Those to leave out are not touched. Read only after the last one.
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
        thorough = not requests or any(request.detailed for request in requests)
        return Results(readings, failures, self.take_xids() if thorough else ())

    def take_xids(self) -> Sequence[Xid]:
        """Those that the driver told since the last time."""
        return self._xids.take()

    def index_of(self, uuid: str) -> int | None:
        """NVML's index of the GPU; None if it is not known."""
        device = self._devices.get(uuid)
        return None if device is None else device.facts.index

    def read_one(self, request: ReadRequest) -> Reading | Failure:
        """One device."""
        device = self._devices.get(request.uuid)
        if device is None:
            return Failure(ReadError.LOST, "the driver does not show it")
        try:
            return device.read(request)
        except GoneError as error:
            self._renew(at_once=error.trouble is ReadError.DRIVER)
            return Failure(error.trouble, error.why)
        except Exception as error:  # whatever the binding raises costs one reading
            self._once(WARNING, f"GPU {request.uuid} cannot be read: {type(error).__name__}")
            return Reading(self._now_s())

    def close(self) -> None:
        """Let go of the driver."""
        self._close([self._xids, *self._devices.values()])
        self._devices = {}
        if self._started:
            self._started = False
            try:
                pynvml.nvmlShutdown()
            except Exception as error:  # whatever the binding raises: the library is initialised again
                self._tell(WARNING, f"NVML does not shut down: {explained(error)}")

    def _close(self, opened: Iterable[XidEvents | NvmlDevice]) -> None:
        """Give back what the driver holds for them."""
        for item in opened:
            try:
                item.close()
            except Exception as error:  # whatever the binding raises
                self._once(WARNING, f"NVML does not release its resources: {type(error).__name__}")

    def start(self) -> int:
        """The number of GPUs; initialises the library, anew after anything was lost. Raises NvmlError."""
        if self._stale:
            self.close()
            self._stale = False
        try:
            if not self._started:
                pynvml.nvmlInit()
                self._started = True
            for _ in range(2):
                count = int(pynvml.nvmlDeviceGetCount())
                if is_plausible("gpu_count", count):
                    return count
        except Exception as error:  # whatever the binding raises
            self._stale = True
            raise NvmlError(f"NVML: {explained(error)}") from error
        raise NvmlError(f"NVML: {count} GPUs are more than a machine can have")

    def _renew(self, *, at_once: bool) -> None:
        """Initialise the library anew before devices are looked for next."""
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
        except Exception as error:  # whatever the binding raises: this GPU does not answer, the others do
            self._renew(at_once=False)
            if index not in self._silent:
                self._silent[index] = Failure(ReadError.LOST, explained(error))
                self._tell(WARNING, f"GPU with NVML index {index} does not answer: {explained(error)}")
            return ()
        self._silent.pop(index, None)
        self._devices |= devices
        return [its for _, its, _ in found]

    def _instances(self, gpu: Any, facts: DeviceProperties) -> Iterator[tuple[Any, DeviceProperties]]:
        """Its MIG instances; raises GoneError."""
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
