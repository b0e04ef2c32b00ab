"""What one look at the GPUs asks for and brings back. None = the device cannot say; 0 is a measurement.

Everything here is plain data: it crosses the pipe between slurm-gpud and the child that calls NVML. Named
tuples, since they are JSON arrays already, and the child is spared the weight of dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from slurm_gpu.errors import NvmlError

# How the reader's process tells which GPU it asks: NVML's index, a big-endian number in shared memory.
PROGRESS_BYTES = 2
ASKS_NONE = 0xFFFF


class DeviceProperties(NamedTuple):
    """What does not change about a GPU or MIG instance while the driver stays loaded.

    `index` and `minor` of a MIG instance are its GPU's (`parent`). Bandwidths are the most that the links can
    carry in one direction.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # not tuple's method of that name
    minor: int | None = None
    name: str | None = None
    memory_bytes: int | None = None
    parent: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    pcie_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    pci_bus_id: str | None = None
    driver: str | None = None


class DeviceMemory(NamedTuple):
    """Memory in bytes; `used` is what jobs and the driver's contexts take, not the driver's reserve."""

    used: int
    total: int


class GpuProcess(NamedTuple):
    """A process with a context on the GPU; `used` is its memory in bytes."""

    pid: int
    used: int | None


class UtilizationSample(NamedTuple):
    """Percent of the time since the sample before in which a kernel ran; `at_us` is wall clock, µs.

    None where the driver's value is implausible.
    """

    at_us: int
    percent: float | None


class ProcessSample(NamedTuple):
    """Percent of the SMs' time that a process took up to `at_us` (wall clock, µs)."""

    pid: int
    at_us: int
    percent: float


class DeviceCounter(NamedTuple):
    """A running total that starts anew at 2**bits, and with the driver."""

    value: int
    bits: int = 64


class Activity(NamedTuple):
    """GPM's fractions (0–1) and rates over the `seconds` since the last detailed look."""

    seconds: float
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None


class ReadRequest(NamedTuple):
    """What to read of one device: memory always, the rest only if asked for.

    A ring is read after the given wall-clock time in µs. `detailed` asks for all fields of Reading below
    the rings; of those `util_pct` comes too where `ring` was asked for and the device has none.
    """

    uuid: str
    detailed: bool = False
    processes: bool = False
    ring_after_us: int | None = None
    process_ring_after_us: int | None = None


class Reading(NamedTuple):
    """One device, at Clock.monotonic() `at_s`.

    `ring` and `process_ring` are empty where there is nothing newer, None where the device has none.
    `throttle` are the reasons in force for which the clocks are held down, by NVML's names in lower case.
    `implausible` are the values by field that are gaps here since they cannot be; None where there were none.
    """

    at_s: float
    memory: DeviceMemory | None = None
    processes: Sequence[GpuProcess] | None = None
    ring: Sequence[UtilizationSample] | None = None
    process_ring: Sequence[ProcessSample] | None = None
    util_pct: float | None = None
    mem_util_pct: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    sm_clock_mhz: float | None = None
    energy_mj: DeviceCounter | None = None
    pcie_rx_bytes: DeviceCounter | None = None
    pcie_tx_bytes: DeviceCounter | None = None
    nvlink_rx_bytes: DeviceCounter | None = None
    nvlink_tx_bytes: DeviceCounter | None = None
    ecc_corrected: DeviceCounter | None = None
    ecc_uncorrected: DeviceCounter | None = None
    throttle: Sequence[str] | None = None
    activity: Activity | None = None
    implausible: Mapping[str, str] | None = None


class Xid(NamedTuple):
    """An error that the driver told, at wall-clock `at_s`."""

    uuid: str
    code: int
    at_s: float


class ReadError(StrEnum):
    """Why a device could not be read."""

    LOST = "lost"  # it fell off the bus, or needs a reset
    HUNG = "hung"  # a call did not come back in time
    DRIVER = "driver"  # the driver went away, or was reloaded under us


class Failure(NamedTuple):
    """A device that says nothing any more, and what it said last."""

    trouble: ReadError
    why: str


class Results(NamedTuple):
    """What came back, by UUID.

    A device that was asked for and is in neither could not be asked this time: ask again.
    """

    readings: Mapping[str, Reading]
    failures: Mapping[str, Failure]
    xids: Sequence[Xid] = ()


class ReaderStartingError(NvmlError):
    """The driver has not answered yet: ask again soon."""


class Reader(Protocol):
    """Reads the GPUs of this machine; never waits longer than its deadline, whatever the driver does."""

    def devices(self) -> Sequence[DeviceProperties]:
        """All GPUs and MIG instances that answer, in the driver's order.

        Raises NvmlError without a driver, ReaderStartingError while it is not known yet.
        """

    @property
    def silent(self) -> Mapping[int, Failure]:
        """GPUs that the driver lists, and that did not answer to the last devices(), by NVML's index."""

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        """One look at these devices."""


class Follower(Protocol):
    """Reads on by itself, while nobody asks it for anything else: whoever wants to know need not wake up."""

    @property
    def follows(self) -> bool:
        """Does it?"""

    @property
    def overdue_s(self) -> float:
        """When its next look will be so late that something hangs (Clock.monotonic())."""

    def follow(self, uuids: Sequence[str], every_s: float, until_s: float) -> None:
        """Read the memory of these devices at whole multiples of `every_s` before `until_s`, if it can."""

    def followed(self) -> Sequence[tuple[str, Reading]]:
        """What it has read so since the last time, by UUID, oldest first."""


_COUNTERS = (name for name, kind in Reading.__annotations__.items() if "Counter" in str(kind))
_ONE: Sequence[tuple[int, Any]] = [
    (Reading._fields.index(name), kind)
    for name, kind in {
        "memory": DeviceMemory,
        "activity": Activity,
        **dict.fromkeys(_COUNTERS, DeviceCounter),
    }.items()
]
_MANY: Sequence[tuple[int, Any]] = [
    (Reading._fields.index("processes"), GpuProcess),
    (Reading._fields.index("ring"), UtilizationSample),
    (Reading._fields.index("process_ring"), ProcessSample),
]


def reading_of(row: list[Any]) -> Reading:
    """Build a reading from a JSON array of its fields, which is used up.

    Raises ValueError or TypeError if that is no reading.
    """
    if len(row) != len(Reading._fields):
        raise ValueError(f"{len(row)} fields instead of {len(Reading._fields)}")
    for position, kind in _ONE:
        if row[position] is not None:
            row[position] = kind(*row[position])
    for position, kind in _MANY:
        if row[position] is not None:
            row[position] = [kind(*item) for item in row[position]]
    return Reading(*row)
