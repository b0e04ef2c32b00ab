"""Register work in the world file of a simulated node, and step the node's clock.

`creation` creates the file. lab/nvml/world.h describes its layout, and which process may write which part.
All writers here lock the file with flock(2); the kernel releases the lock when the writer ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from . import layout
from .creation import place
from .errors import RequestError, WorldError
from .load import FULL, USUAL, Activity, Footprint, Part, Point, integrate
from .process import is_alive, start_ticks
from .specs import MigSpec, instances

Points = TypeVar("Points", bound=Sequence[Point])

_SIZE = ctypes.sizeof(layout.WorldStruct)
# Processes are moved to the history this long after their end, since the sample rings cover 20 s.
_FOLD_AFTER_NS = 25_000_000_000


@dataclass(frozen=True)
class Device:
    """The properties of a GPU or MIG instance that simgpu needs."""

    # NVML's index of the GPU.
    index: int
    uuid: str
    # The minor number of the GPU.
    minor: int
    pci: tuple[int, int, int]
    memory_mib: int
    reserved_mib: int
    # The number of the target in the world.
    target: int
    # NVML's GPU instance ID of a MIG instance.
    gpu_instance: int | None = None


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
        """Exclude other writers."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def now_ns(self) -> int:
        """Return the wall-clock time in ns, or the time of the stopped clock."""
        fake: int = self.content.fake_now_ns
        return time.time_ns() if fake == 0 else fake

    def stop_clock(self, at_ns: int | None) -> None:
        """Stop the clock at ``at_ns`` for all readers; None lets it run again."""
        self.content.fake_now_ns = 0 if at_ns is None else at_ns

    def step_clock(self, by_ns: int) -> None:
        """Step the wall clock: from now on, NVML's timestamps are later, or earlier, by ``by_ns``.

        The step also applies to processes with lab/nvml/wallclock.c preloaded. Schedules, truth and
        ``now_ns`` continue. Only the last two steps are stored: the offset between them also
        applies to all earlier timestamps.
        """
        # With this order of writes, no reader computes a timestamp from a clock that never existed.
        self.content.clock_before_ns = self.content.clock_step_ns
        self.content.clock_step_at_ns = self.now_ns()
        self.content.clock_step_ns += by_ns

    @property
    def devices(self) -> list[Device]:
        """The GPUs in NVML order."""
        return [self._device(index) for index in range(self.content.n_devices)]

    @property
    def instances(self) -> list[Device]:
        """The MIG instances of all GPUs, in NVML order."""
        there = [
            (instance.device, instance.index, number, instance)
            for number, instance in enumerate(self.content.instances)
            if instance.exists
        ]
        return [
            replace(
                self._device(device),
                uuid=instance.uuid.decode(),
                memory_mib=instance.memory_mib,
                reserved_mib=0,
                target=layout.MAX_DEVICES + number,
                gpu_instance=instance.gpu_instance,
            )
            for device, _, number, instance in sorted(there, key=lambda one: one[:2])
        ]

    @property
    def computing(self) -> list[Device]:
        """The targets that programs can use: GPUs without MIG, and MIG instances."""
        whole = [
            device
            for device in self.devices
            if self.content.devices[device.index].mig_mode != layout.MIG_ENABLED
        ]
        return whole + self.instances

    def _device(self, index: int) -> Device:
        device = self.content.devices[index]
        return Device(
            index=index,
            uuid=device.uuid.decode(),
            minor=device.minor_number,
            pci=(device.pci_domain, device.pci_bus, device.pci_device),
            memory_mib=device.memory_mib,
            reserved_mib=device.reserved_mib,
            target=index,
        )

    def calls(self) -> dict[str, int]:
        """Return how often each function of the library was called."""
        return {call.name.decode(): call.count for call in self.content.calls[: self.content.n_functions]}

    def register(
        self,
        target: int,
        points: Sequence[Point],
        pid: int,
        started: int | None = None,
        *,
        activity: Activity = USUAL,
        footprint: Footprint = FULL,
        mps: bool = False,
    ) -> int:
        """Register a process with its schedule on a target, and return its slot.

        The target of a GPU is its NVML index; ``instances`` lists the targets of MIG instances. ``started``
        is the start time of the process in ticks, read from /proc if None. If it is 0, the process need not
        exist, so that tests can invent processes.
        """
        (slot,), _ = self.begin(
            [target], lambda: points, pid, started, activity=activity, footprint=footprint, mps=mps
        )
        return slot

    def begin(
        self,
        targets: Sequence[int],
        schedule: Callable[[], Points],
        pid: int,
        started: int | None = None,
        *,
        activity: Activity = USUAL,
        footprint: Footprint = FULL,
        mps: bool = False,
        application: str = "",
    ) -> tuple[list[int], Points]:
        """Register a process on several targets at once; return its slots and its schedule.

        ``schedule`` is called last, since the preparation takes a long time on a busy host, and readers would
        miss the load during that time.
        """
        if started is None:
            started = start_ticks(pid)
            if started is None:
                raise RequestError(f"process {pid} does not exist")
        with self.locked():
            self._end_vanished()
            self._fold(self.now_ns() - _FOLD_AFTER_NS)
            numbers = self._free_slots(len(targets))
            slots = [self.content.processes[number] for number in numbers]
            for slot, target in zip(slots, targets, strict=True):
                slot.target, slot.pid = target, pid
                slot.flags = layout.PROCESS_MPS if mps else 0
                slot.application = application.encode()
                slot.start_ticks, slot.end_ns = started, 0
                slot.factors = (1.0, *activity, footprint.power, footprint.pcie, footprint.nvlink)
                slot.clock, slot.reasons = footprint.clock, footprint.reasons
            self.content.slots_used = max(self.content.slots_used, *(number + 1 for number in numbers))
            points = schedule()
            if not 2 <= len(points) <= layout.MAX_POINTS:
                raise RequestError(f"a schedule of {len(points)} points: must be 2 to {layout.MAX_POINTS}")
            for slot in slots:
                slot.n_points = len(points)
                for index, point in enumerate(points):
                    slot.points[index] = tuple(point)
            for slot in slots:
                slot.state = layout.SLOT_ACTIVE
        return numbers, points

    def end(self, slot: int, at_ns: int) -> None:
        """Record when the process in ``slot`` ended."""
        self.content.processes[slot].end_ns = at_ns

    def co_runners(self, target: int, pid: int) -> tuple[str, ...]:
        """Return the sorted applications of all other processes on a target.

        The result includes processes that are about to begin, and processes whose end has not been recorded.
        A process that changes its schedule has two schedules for a moment, but counts only once.
        """
        with self.locked():
            self._end_vanished()
            now_ns = self.now_ns()
            there = {
                other.pid: other.application.decode()
                for other in self._active()
                if other.target == target
                and other.pid != pid
                and other.application
                and _ended_ns(other) > now_ns
            }
            return tuple(sorted(there.values()))

    def end_where_memory_is_out(self, target: int, slot: int, available_mib: float) -> bool:
        """Return whether the processes of a target use too much memory; if so, end the one in ``slot``."""
        with self.locked():
            now_ns = self.now_ns()
            parts = [
                Part(_points(one))
                for one in self._active()
                if one.target == target and _ended_ns(one) > now_ns
            ]
            is_out = sum(part.line(now_ns, now_ns)[0].memory_mib for part in parts) > available_mib
            if is_out:
                self.end(slot, now_ns)
            return is_out

    def set_instances(self, device: int, specs: Sequence[MigSpec]) -> None:
        """Replace the MIG instances of a device; the processes on the old instances are removed."""
        new = instances(specs, device)
        with self.locked():
            now_ns = self.now_ns()
            old = [one for one in self.instances if one.index == device]
            for slot in self._active():
                if slot.target in {one.target for one in old}:
                    slot.end_ns = min(slot.end_ns or now_ns, now_ns)
            self._fold(now_ns, gone=old)
            for one in old:
                self.content.instances[one.target - layout.MAX_DEVICES].exists = 0
            self.content.devices[device].mig_mode = layout.MIG_ENABLED if new else layout.MIG_DISABLED
            place(self.content, new)

    def unload_driver(self) -> None:
        """Make nvmlInit fail, and invalidate earlier initialisations."""
        self.content.driver_loaded = 0

    def load_driver(self) -> None:
        """Make nvmlInit work again if it failed; counters restart, and schedules continue."""
        if self.content.driver_loaded:
            return
        with self.locked():
            new = self.content.history[(self.content.folds + 1) & 1]
            new.pct_ns = type(new.pct_ns)()
            new.until_ns = self.content.boot_ns = self.now_ns()
            self.content.folds += 1
            for device in self.content.devices[: self.content.n_devices]:
                device.high_pct_ns = type(device.high_pct_ns)()
                device.energy_high_mj = 0
                device.ecc_corrected_before += device.faults.ecc_corrected
                device.ecc_uncorrected_before += device.faults.ecc_uncorrected
                device.faults.ecc_corrected = device.faults.ecc_uncorrected = 0
                device.faults.energy_offset_mj = 0
                device.faults.pcie_tx_offset = device.faults.pcie_rx_offset = 0
                device.faults.nvlink_tx_offset = device.faults.nvlink_rx_offset = 0
            self.content.driver_loads += 1
            self.content.driver_loaded = 1

    def add_xid(self, device: int, code: int, gpu_instance: int | None = None) -> None:
        """Make the driver report an error."""
        with self.locked():
            xid = self.content.xids[self.content.n_xids % layout.MAX_XIDS]
            xid.time_ns, xid.device, xid.code = self.now_ns(), device, code
            xid.gpu_instance = layout.NO_INSTANCE if gpu_instance is None else gpu_instance
            self.content.n_xids += 1

    def total_pct_ns(self, device: int, total: str) -> int:
        """Return one of the device's totals since boot, from which the library computes its counters."""
        now_ns, number = self.now_ns(), layout.TOTALS.index(total)
        summed = self._totals(device, now_ns)[number]
        for one in self.instances:
            if one.index == device:
                summed += self._weight(one) * self._totals(one.target, now_ns)[number]
        return int(summed)

    def _weight(self, instance: Device) -> float:
        slices: int = self.content.instances[instance.target - layout.MAX_DEVICES].slices
        return slices / layout.GPU_SLICES

    def _totals(self, target: int, until_ns: int) -> list[float]:
        """Return the total utilisation of a target until that time, in percent × ns."""
        history = self._history
        totals = list(history.pct_ns[target])
        if until_ns > history.until_ns:
            slots = [
                slot
                for slot in self._active()
                if slot.target == target and _ended_ns(slot) > history.until_ns
            ]
            parts = [Part(_points(slot), slot.end_ns or None) for slot in slots]
            for slot, share in zip(slots, integrate(parts, history.until_ns, until_ns).shares, strict=True):
                for total, factor in enumerate(slot.factors):
                    totals[total] += share * factor
        return totals

    @property
    def _history(self) -> layout.HistoryStruct:
        history: layout.HistoryStruct = self.content.history[self.content.folds & 1]
        return history

    def _active(self) -> Iterator[layout.ProcessStruct]:
        slots = (self.content.processes[number] for number in range(self.content.slots_used))
        return (slot for slot in slots if slot.state == layout.SLOT_ACTIVE)

    def _free_slots(self, count: int) -> list[int]:
        used: int = self.content.slots_used
        free = [number for number in range(used) if self.content.processes[number].state == layout.SLOT_FREE]
        found = [*free, *range(used, layout.MAX_PROCESSES)][:count]
        if len(found) < count:
            raise WorldError(f"all {layout.MAX_PROCESSES} process slots of this world are in use")
        return found

    def _end_vanished(self) -> None:
        for slot in self._active():
            if slot.start_ticks != 0 and slot.end_ns == 0 and not is_alive(slot.pid, slot.start_ticks):
                slot.end_ns = self.now_ns()

    def _fold(self, until_ns: int, gone: Sequence[Device] = ()) -> None:
        """Add the integrals of processes that ended by ``until_ns`` to the history, then free their slots.

        The integrals of instances that are ``gone`` are added to their devices.
        """
        lost = {one.target for one in gone}
        over = [slot for slot in self._active() if slot.target in lost or _ended_ns(slot) <= until_ns]
        if not (over or lost):
            return
        if lost or until_ns > self._history.until_ns:
            new = self.content.history[(self.content.folds + 1) & 1]
            used = [*range(self.content.n_devices), *(one.target for one in self.instances)]
            totals = {target: self._totals(target, until_ns) for target in used}
            for one in gone:
                weight = self._weight(one)
                for total, value in enumerate(totals[one.target]):
                    totals[one.index][total] += weight * value
                totals[one.target] = [0.0] * len(layout.TOTALS)
            new.pct_ns = type(new.pct_ns)()
            for target, values in totals.items():
                new.pct_ns[target] = tuple(values)
            new.until_ns = max(until_ns, self._history.until_ns)
            self.content.folds += 1
        for slot in over:
            slot.state = layout.SLOT_FREE


def _points(slot: layout.ProcessStruct) -> list[Point]:
    return [Point(point.time_ns, point.util_pct, point.memory_mib) for point in slot.points[: slot.n_points]]


def _ended_ns(slot: layout.ProcessStruct) -> int:
    last: int = slot.points[slot.n_points - 1].time_ns
    return last if slot.end_ns == 0 else min(last, slot.end_ns)
