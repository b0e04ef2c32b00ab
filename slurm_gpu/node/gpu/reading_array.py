"""A reading as it comes through the pipe: a JSON array of its fields, of which some are arrays themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_gpu.node.gpu.reading import (
    Activity,
    DeviceCounter,
    DeviceMemory,
    GpuProcess,
    ProcessSample,
    Reading,
    UtilizationSample,
)

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
    """The reading that an array is, which is used up."""
    for position, kind in _ONE:
        if row[position] is not None:
            row[position] = kind(*row[position])
    for position, kind in _MANY:
        if row[position] is not None:
            row[position] = [kind(*item) for item in row[position]]
    return Reading(*row)
