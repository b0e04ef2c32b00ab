"""Read counters of a device with one batched nvmlDeviceGetFieldValues."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pynvml

from slurm_gpu.node.gpu.nvml_calls import NEVER, SUCCESS, NvmlCalls, check_gone
from slurm_gpu.node.gpu.reading import DeviceCounter
from slurm_gpu.plausible import is_plausible


class _Field(NamedTuple):
    """A field (nvml.h: NVML_FI_DEV_…) with its scope; its values are in units of 2**shift.

    Fields are given by number, because older bindings lack some of the names.
    """

    number: int
    scope: int = 0
    shift: int = 0


_ALL_LINKS = 0xFFFFFFFF
# Placeholder for the scope of a counter that has one field per link.
_EACH_LINK = 0xFFFFFFFE
_NVLINK_COUNT = _Field(91)  # NVLINK_LINK_COUNT

# Fields by their name in Reading; the first field that the device has is used.
_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "energy_mj": (_Field(83),),  # TOTAL_ENERGY_CONSUMPTION
    "pcie_rx_bytes": (_Field(198),),  # PCIE_COUNT_RX_BYTES
    "pcie_tx_bytes": (_Field(197),),  # PCIE_COUNT_TX_BYTES
    # NVLINK_THROUGHPUT_DATA_… is in KiB; from the fifth generation on, NVLINK_COUNT_…_BYTES is used.
    "nvlink_rx_bytes": (_Field(139, _ALL_LINKS, shift=10), _Field(204, _EACH_LINK)),
    "nvlink_tx_bytes": (_Field(138, _ALL_LINKS, shift=10), _Field(202, _EACH_LINK)),
    # ECC_SBE_VOL_TOTAL, ECC_DBE_VOL_TOTAL: single-bit and double-bit errors since the driver was loaded.
    "ecc_corrected": (_Field(3),),
    "ecc_uncorrected": (_Field(4),),
}
# The member of the union and the width of a counter in bits, by NVML's value type.
_TYPES = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: ("uiVal", 32),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: ("ulVal", 64),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: ("ullVal", 64),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: ("sllVal", 63),
}


# A field is dropped after this many consecutive misses, since a single miss may be a driver error.
_MISSES = 3


class FieldValues:
    """Reads the counters of one device."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self._links: int | None = None
        self._fields: dict[str, tuple[_Field, ...]] = dict(_FIELDS)
        self._misses = dict.fromkeys(_FIELDS, 0)
        self._prepare()

    def has(self, name: str) -> bool:
        """Return whether the counter can currently be read as a field."""
        out = self._calls.is_out("nvmlDeviceGetFieldValues")
        return name in self._fields and not self._misses[name] and not out

    def read(self) -> Mapping[str, DeviceCounter]:
        """Return the available counters by their names in Reading; raise GoneError if the device is gone."""
        found: dict[str, DeviceCounter] = {}
        if not self._get(self._values):
            return found
        failed: dict[str, int] = {}
        for name, value in zip(self._names, self._values, strict=True):
            kind = _TYPES.get(value.valueType)
            if value.nvmlReturn != SUCCESS or kind is None:
                check_gone(value.nvmlReturn)
                failed[name] = value.nvmlReturn
                continue
            member, bits = kind
            shift, before = self._fields[name][0].shift, found.get(name)
            count = getattr(value.value, member) << shift
            found[name] = DeviceCounter(count if before is None else before.value + count, bits + shift)
        for name in found.keys() - failed:
            self._misses[name] = 0
        for name, code in failed.items():
            found.pop(name, None)
            self._failed(name, code)
        return found

    def _failed(self, name: str, code: int) -> None:
        """Count a failed read of the counter; after repeated failures, use its next field or drop it."""
        what = f"{name} (field {self._fields[name][0].number})"
        self._calls.failed(what, code)
        if code not in NEVER:
            return
        self._misses[name] += 1
        if self._misses[name] >= _MISSES:
            self._misses[name] = 0
            others = self._fields.pop(name)[1:]
            if others:
                self._fields[name] = others
            self._prepare()

    def _prepare(self) -> None:
        wanted = [(name, field) for name, fields in self._fields.items() for field in self._each(fields[0])]
        self._names = [name for name, _ in wanted]
        self._values = _values([field for _, field in wanted])

    def _each(self, field: _Field) -> list[_Field]:
        if field.scope != _EACH_LINK:
            return [field]
        if self._links is None:
            count = _values([_NVLINK_COUNT])
            is_known = self._get(count) and count[0].nvmlReturn == SUCCESS
            links = count[0].value.uiVal if is_known else 0
            self._links = links if is_plausible("nvlink_count", links) else 0
        return [field._replace(scope=link) for link in range(self._links)]

    def _get(self, values: Any) -> bool:
        return len(values) > 0 and self._calls.gives(
            "nvmlDeviceGetFieldValues", len(values), ctypes.byref(values)
        )


def _values(fields: Sequence[_Field]) -> Any:
    """Return the array for nvmlDeviceGetFieldValues to fill."""
    values: Any = (pynvml.c_nvmlFieldValue_t * len(fields))()
    for value, field in zip(values, fields, strict=True):
        value.fieldId, value.scopeId = field.number, field.scope
    return values
