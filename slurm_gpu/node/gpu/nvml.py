"""GPUs through NVIDIA's library: finds them, reads them, and starts anew after the driver did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pynvml

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.nvmlcalls import WARNING, GoneError, Tell, once
from slurm_gpu.node.gpu.nvmldevice import Arrays, NvmlDevice, since_boot_s
from slurm_gpu.node.gpu.nvmlfacts import gpu_facts, instance_facts, instances
from slurm_gpu.node.gpu.reading import Facts, Failure, Reading, Request, Results, Trouble, Xid
from slurm_gpu.node.gpu.xids import XidEvents

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
        self._silent: set[int] = set()
        self._started = self._stale = False
        self._renew_at_s = 0.0

    def devices(self) -> Sequence[Facts]:
        """See Reader."""
        return [facts for _, found in self.find() for facts in found]

    def find(self, leave_out: Collection[int] = ()) -> Iterator[tuple[int, Sequence[Facts]]]:
        """By NVML's index: the GPU with its MIG instances, nothing where it does not answer.

        Raises NvmlError. Those to leave out are not touched. Read only after the last one.
        """
        count = self.start()
        before, self._devices = self._devices, {}
        for index in range(count):
            yield index, () if index in leave_out else self._find(index, before)
        for device in before.values():
            device.close()
        self._xids.listen({uuid: (d.handle, d.facts) for uuid, d in self._devices.items()})

    def read(self, requests: Sequence[Request]) -> Results:
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

    def read_one(self, request: Request) -> Reading | Failure:
        """One device."""
        device = self._devices.get(request.uuid)
        if device is None:
            return Failure(Trouble.LOST, "the driver does not show it")
        try:
            return device.read(request)
        except GoneError as error:
            self._renew(at_once=error.trouble is Trouble.DRIVER)
            return Failure(error.trouble, error.why)

    def close(self) -> None:
        """Let go of the driver."""
        self._xids.close()
        for device in self._devices.values():
            device.close()
        self._devices = {}
        if self._started:
            self._started = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                self._tell(WARNING, f"NVML does not shut down: {error}")

    def start(self) -> int:
        """The number of GPUs; initialises the library, anew after anything was lost. Raises NvmlError."""
        if self._stale:
            self.close()
            self._stale = False
        try:
            if not self._started:
                pynvml.nvmlInit()
                self._started = True
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self._stale = True
            raise NvmlError(f"NVML: {error}") from error

    def _renew(self, *, at_once: bool) -> None:
        """Initialise the library anew before devices are looked for next."""
        now_s = self._now_s()
        if at_once or now_s >= self._renew_at_s:
            self._stale, self._renew_at_s = True, now_s + _RENEW_S

    def _find(self, index: int, before: dict[str, NvmlDevice]) -> Sequence[Facts]:
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            facts = gpu_facts(gpu, index)
            found = [(gpu, facts, None)]
            for instance in instances(gpu):
                found.append((instance, instance_facts(instance, facts), gpu))
        except (pynvml.NVMLError, GoneError) as error:
            self._renew(at_once=False)
            if index not in self._silent:
                self._silent.add(index)
                self._tell(WARNING, f"GPU with NVML index {index} does not answer: {error}")
            return ()
        self._silent.discard(index)
        for handle, its, parent in found:
            self._devices[its.uuid] = self._device(handle, its, parent, before.pop(its.uuid, None))
        return [its for _, its, _ in found]

    def _device(self, handle: Any, facts: Facts, parent: Any, known: NvmlDevice | None) -> NvmlDevice:
        if known is not None and known.is_same(handle, facts):
            return known
        if known is not None:
            known.close()
        return NvmlDevice(handle, facts, parent, self._arrays, self._once, self._now_s)
