"""The world file of one simulated node: create it, register work in it, step its clock.

Its layout and who may write what when is described in lab/nvml/world.h. All writers here hold flock(2) on
the file, which the kernel drops with its holder.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import layout
from .errors import RequestError, WorldError
from .load import Part, Point, integrate
from .process import is_alive, start_ticks

_FUNCTIONS = Path(__file__).resolve().parent.parent / "nvml" / "functions.def"
_SIZE = ctypes.sizeof(layout.WorldStruct)
_FOLD_AFTER_NS = 25_000_000_000
"""Processes that ended longer ago are folded into the history: the sample rings reach back 20 s."""


@dataclass(frozen=True)
class GpuSpec:
    """One GPU; the defaults are those of an A100-SXM4-40GB."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    minor: int = 0
    memory_mib: int = 40960
    reserved_mib: int = 512
    """Held by the driver: ``used`` in the first MemoryInfo, ``reserved`` in the second."""
    pci_bus_id: str | None = None
    """domain:bus:device; if None the buses ascend with the NVML index, as they really do."""
    idle_w: float = 55.0
    power_limit_w: float = 400.0
    """Drawn at 100 %; linear in between."""
    idle_temperature_c: int = 32
    full_temperature_c: int = 72
    idle_sm_clock_mhz: int = 210
    max_sm_clock_mhz: int = 1410
    memory_clock_mhz: int = 1215
    memory_util_factor: float = 0.6
    """Memory controller's utilisation per utilisation."""
    pcie_tx_bytes_per_s: int = 2_000_000_000
    """At 100 %."""
    pcie_rx_bytes_per_s: int = 6_000_000_000
    pcie_generation: int = 4
    pcie_width: int = 16
    mig_mode: int = layout.MIG_DISABLED
    ecc: bool = True


@dataclass(frozen=True)
class Device:
    """A device of a world, as far as simgpu needs it."""

    index: int
    """NVML's."""
    uuid: str
    minor: int
    pci: tuple[int, int, int]
    memory_mib: int
    reserved_mib: int


def function_names() -> list[str]:
    """Return the library's functions in the order of their numbers."""
    return re.findall(r"^X\((\w+)\)", _FUNCTIONS.read_text(), re.MULTILINE)


def create(path: Path, gpus: Sequence[GpuSpec], boot: float | None = None) -> None:
    """Write a new world with ``gpus`` in NVML order, readable and writable by everyone.

    ``boot`` (epoch seconds, now if None) is when the counters start. An existing file is replaced, not
    changed: who has it mapped goes on with the old one until nvmlShutdown.
    """
    _check(gpus)
    content = layout.WorldStruct(
        magic=layout.MAGIC,
        version=layout.VERSION,
        size=_SIZE,
        n_devices=len(gpus),
        boot_ns=time.time_ns() if boot is None else round(boot * 1e9),
        driver_loaded=1,
    )
    content.history[0].until_ns = content.boot_ns
    names = function_names()
    content.n_functions = len(names)
    for call, name in zip(content.calls, names, strict=False):
        call.name = name.encode()
    for index, gpu in enumerate(gpus):
        _fill(content.devices[index], index, gpu)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        file.write(bytes(content)[: layout.WorldStruct.processes.offset])
        file.truncate(_SIZE)  # the process slots stay a hole until they are used
    new.chmod(0o666)
    new.replace(path)


def _check(gpus: Sequence[GpuSpec]) -> None:
    if not 1 <= len(gpus) <= layout.MAX_DEVICES:
        raise RequestError(f"{len(gpus)} GPUs: a world has 1 to {layout.MAX_DEVICES}")
    for what, values in (("UUID", [gpu.uuid for gpu in gpus]), ("minor", [str(gpu.minor) for gpu in gpus])):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise RequestError(f"{what} {', '.join(twice)}: more than one GPU of the world has it")
    for gpu in gpus:
        if not 0 <= gpu.reserved_mib < gpu.memory_mib:
            raise RequestError(
                f"{gpu.uuid}: reserved_mib {gpu.reserved_mib} must be less than memory_mib {gpu.memory_mib}"
            )


def _fill(device: layout.DeviceStruct, index: int, gpu: GpuSpec) -> None:
    pci = gpu.pci_bus_id or f"0:{index + 7:x}:0"
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(\.0)?", pci)
    if match is None:
        raise RequestError(f"pci_bus_id {pci!r} of {gpu.uuid}: must be DOMAIN:BUS:DEVICE in hex, as 0:7:0")
    device.uuid = gpu.uuid.encode()
    device.name = gpu.name.encode()
    device.minor_number = gpu.minor
    device.pci_domain, device.pci_bus, device.pci_device = (int(text, 16) for text in match.groups()[:3])
    device.pci_device_id = 0x20B010DE
    device.pcie_generation = gpu.pcie_generation
    device.pcie_width = gpu.pcie_width
    device.idle_power_mw = round(gpu.idle_w * 1000)
    device.power_limit_mw = round(gpu.power_limit_w * 1000)
    device.idle_temperature_c = gpu.idle_temperature_c
    device.full_temperature_c = gpu.full_temperature_c
    device.idle_sm_clock_mhz = gpu.idle_sm_clock_mhz
    device.max_sm_clock_mhz = gpu.max_sm_clock_mhz
    device.memory_clock_mhz = gpu.memory_clock_mhz
    device.mig_mode = gpu.mig_mode
    device.ecc_mode = int(gpu.ecc)
    device.memory_mib = gpu.memory_mib
    device.reserved_mib = gpu.reserved_mib
    device.pcie_tx_bytes_per_s = gpu.pcie_tx_bytes_per_s
    device.pcie_rx_bytes_per_s = gpu.pcie_rx_bytes_per_s
    device.memory_util_factor = gpu.memory_util_factor


class World:
    """An open world file; any number of processes may have it open."""

    _fd = -1

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}; is there a simulated node here?") from error
        if os.fstat(self._fd).st_size != _SIZE:
            raise WorldError(f"{path}: no world file of this version ({_SIZE} bytes)")
        self.content = layout.WorldStruct.from_buffer(mmap.mmap(self._fd, _SIZE))
        if (self.content.magic, self.content.version, self.content.size) != (
            layout.MAGIC,
            layout.VERSION,
            _SIZE,
        ):
            raise WorldError(f"{path}: no world file of version {layout.VERSION}")

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def now_ns(self) -> int:
        """Return the wall-clock time in ns, or the stopped clock's."""
        fake: int = self.content.fake_now_ns
        return time.time_ns() if fake == 0 else fake

    def stop_clock(self, at_ns: int | None) -> None:
        """Let it be ``at_ns`` for everyone; None lets time run again."""
        self.content.fake_now_ns = 0 if at_ns is None else at_ns

    @property
    def devices(self) -> list[Device]:
        """The devices in NVML order."""
        return [
            Device(
                index=index,
                uuid=device.uuid.decode(),
                minor=device.minor_number,
                pci=(device.pci_domain, device.pci_bus, device.pci_device),
                memory_mib=device.memory_mib,
                reserved_mib=device.reserved_mib,
            )
            for index, device in enumerate(self.content.devices[: self.content.n_devices])
        ]

    def calls(self) -> dict[str, int]:
        """Return how often each function of the library was called."""
        return {call.name.decode(): call.count for call in self.content.calls[: self.content.n_functions]}

    def register(self, device: int, points: Sequence[Point], pid: int, started: int | None = None) -> int:
        """Put a process with its schedule on a device and return its slot.

        ``started`` is the process's start time in ticks, looked up if None; with 0 nobody looks whether the
        process exists, so that tests may invent some.
        """
        if not 2 <= len(points) <= layout.MAX_POINTS:
            raise RequestError(f"a schedule of {len(points)} points: must be 2 to {layout.MAX_POINTS}")
        if started is None:
            started = start_ticks(pid)
            if started is None:
                raise RequestError(f"process {pid}: there is none")
        with self.locked():
            self._end_vanished()
            self._fold()
            number = self._free_slot()
            slot = self.content.processes[number]
            slot.device, slot.pid, slot.n_points = device, pid, len(points)
            slot.start_ticks, slot.end_ns = started, 0
            for index, point in enumerate(points):
                slot.points[index] = tuple(point)
            slot.state = layout.SLOT_ACTIVE
            self.content.slots_used = max(self.content.slots_used, number + 1)
        return number

    def end(self, slot: int, at_ns: int) -> None:
        """Note when the process in ``slot`` ended."""
        self.content.processes[slot].end_ns = at_ns

    def busy_pct_ns(self, device: int) -> int:
        """Return the device's utilisation integrated since boot, as the library's counters follow it."""
        history = self._history
        now_ns = self.now_ns()
        busy: float = history.busy_pct_ns[device]
        if now_ns > history.until_ns:
            busy += integrate(self._parts(device, history.until_ns), history.until_ns, now_ns).busy
        return int(busy)

    @property
    def _history(self) -> layout.HistoryStruct:
        history: layout.HistoryStruct = self.content.history[self.content.folds & 1]
        return history

    def _active(self) -> Iterator[layout.ProcessStruct]:
        slots = (self.content.processes[number] for number in range(self.content.slots_used))
        return (slot for slot in slots if slot.state == layout.SLOT_ACTIVE)

    def _parts(self, device: int, after_ns: int) -> list[Part]:
        return [
            Part(_points(slot), slot.end_ns or None)
            for slot in self._active()
            if slot.device == device and _ended_ns(slot) > after_ns
        ]

    def _free_slot(self) -> int:
        used: int = self.content.slots_used
        for number in range(used):
            if self.content.processes[number].state == layout.SLOT_FREE:
                return number
        if used == layout.MAX_PROCESSES:
            raise WorldError(f"all {used} process slots of this world are in use")
        return used

    def _end_vanished(self) -> None:
        for slot in self._active():
            if slot.start_ticks != 0 and slot.end_ns == 0 and not is_alive(slot.pid, slot.start_ticks):
                slot.end_ns = self.now_ns()

    def _fold(self) -> None:
        """Free the slots of what ended long ago, keeping its integral; the order of the stores matters."""
        until_ns = self.now_ns() - _FOLD_AFTER_NS
        over = [slot for slot in self._active() if _ended_ns(slot) <= until_ns]
        if not over:
            return
        old = self._history
        if until_ns > old.until_ns:
            new = self.content.history[(self.content.folds + 1) & 1]
            for device in range(self.content.n_devices):
                parts = self._parts(device, old.until_ns)
                new.busy_pct_ns[device] = (
                    old.busy_pct_ns[device] + integrate(parts, old.until_ns, until_ns).busy
                )
            new.until_ns = until_ns
            self.content.folds += 1
        for slot in over:
            slot.state = layout.SLOT_FREE


def _points(slot: layout.ProcessStruct) -> list[Point]:
    return [Point(point.time_ns, point.util_pct, point.memory_mib) for point in slot.points[: slot.n_points]]


def _ended_ns(slot: layout.ProcessStruct) -> int:
    last: int = slot.points[slot.n_points - 1].time_ns
    return last if slot.end_ns == 0 else min(last, slot.end_ns)
