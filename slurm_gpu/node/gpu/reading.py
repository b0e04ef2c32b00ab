"""Define the data of one sample of the GPUs, in which None means that a value is not available.

Values of all these types are sent through the pipe between slurm-gpud and the child that calls NVML. The
types are named tuples, which serialise as JSON arrays and use less memory in the child than dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from slurm_gpu.errors import NvmlError

# The reader process writes a big-endian number to shared memory: NVML's index of the GPU that it calls.
PROGRESS_BYTES = 2
ASKS_NONE = 0xFFFF


class DeviceProperties(NamedTuple):
    """The properties of a GPU or MIG instance that do not change while the driver is loaded.

    A MIG instance has the `index` and `minor` of its GPU, whose UUID is `parent`. Bandwidths are the maxima
    in one direction.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # hides tuple's method of that name
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
    """The memory in bytes; `used` includes jobs and driver contexts, but not the driver's reserve."""

    used: int
    total: int


class GpuProcess(NamedTuple):
    """A process with a context on the GPU, and its memory in bytes."""

    pid: int
    used: int | None


class UtilizationSample(NamedTuple):
    """The percentage of the time since the previous sample during which a kernel ran.

    `at_us` is wall-clock time in µs. `percent` is None if the driver's value is implausible.
    """

    at_us: int
    percent: float | None


class ProcessSample(NamedTuple):
    """The percentage of the SMs' time that a process used up to `at_us` (wall clock, µs)."""

    pid: int
    at_us: int
    percent: float


class DeviceCounter(NamedTuple):
    """A total that wraps at 2**bits and restarts when the driver is reloaded."""

    value: int
    bits: int = 64


class Activity(NamedTuple):
    """GPM's fractions (0–1) and rates over the `seconds` since the previous detailed sample."""

    seconds: float
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None


class ReadRequest(NamedTuple):
    """A request for one device's memory and optional fields.

    A ring is a sample buffer of the driver; only its samples after the given wall-clock time in µs are
    read. `detailed` requests all fields of Reading that are declared after the ring fields. `util_pct` is
    also read if a ring is requested but the device has none.
    """

    uuid: str
    detailed: bool = False
    processes: bool = False
    ring_after_us: int | None = None
    process_ring_after_us: int | None = None


class Reading(NamedTuple):
    """The values of one device at `at_s` (Clock.monotonic()).

    `ring` and `process_ring` are empty if there are no newer samples, and None if the device does not have
    them. `throttle` contains the active throttle reasons, named as in NVML but in lower case. `implausible`
    contains the rejected values by field, or is None if there are none.
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
    """An error that the driver reported at wall-clock time `at_s`."""

    uuid: str
    code: int
    at_s: float


class ReadError(StrEnum):
    """The reason why a device could not be read."""

    LOST = "lost"  # the device fell off the bus or requires a reset
    HUNG = "hung"  # a call did not return in time
    DRIVER = "driver"  # the driver was unloaded or reloaded


class Failure(NamedTuple):
    """The failure of a device, with a message."""

    kind: ReadError
    why: str


class Results(NamedTuple):
    """Readings and failures by UUID.

    A requested device that is in neither could not be read this time and should be requested again.
    """

    readings: Mapping[str, Reading]
    failures: Mapping[str, Failure]
    xids: Sequence[Xid] = ()


class ReaderStartingError(NvmlError):
    """The driver has not answered yet, so the caller should retry soon."""


class Reader(Protocol):
    """Reads the GPUs of this machine within a deadline, even if the driver hangs."""

    def devices(self) -> Sequence[DeviceProperties]:
        """Return all GPUs and MIG instances that answer, in the driver's order.

        Raise NvmlError if the driver does not work, and ReaderStartingError while it is starting.
        """

    @property
    def silent(self) -> Mapping[int, Failure]:
        """Return the failures of GPUs that did not answer the last devices() call, by NVML's index."""

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        """Sample these devices."""


class Follower(Protocol):
    """Samples memory by itself between requests, so that the daemon does not have to wake up."""

    @property
    def follows(self) -> bool:
        """Return whether the reader is sampling by itself."""

    @property
    def overdue_s(self) -> float:
        """Return the time (Clock.monotonic()) at which the reader counts as hung if no sample has arrived."""

    def follow(self, uuids: Sequence[str], every_s: float, until_s: float) -> None:
        """Sample the memory of these devices at multiples of `every_s` before `until_s`, if possible."""

    def followed(self) -> Sequence[tuple[str, Reading]]:
        """Return new readings with their UUIDs, oldest first."""


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
    """Build a reading from a JSON array of its fields; modify the array in place.

    Raise ValueError or TypeError if the array is malformed.
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
