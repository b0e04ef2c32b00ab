"""Running totals of a device through one batched nvmlDeviceGetFieldValues."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import pynvml

from slurm_gpu.node.nvmlcalls import SUCCESS, Calls, check_gone
from slurm_gpu.node.reading import Counter


class _Field(NamedTuple):
    """A field (nvml.h: NVML_FI_DEV_…) with its scope, counting in units of 2**shift."""

    number: int
    scope: int = 0
    shift: int = 0


_ALL_LINKS = 0xFFFFFFFF
_TOTAL_ENERGY = _Field(83)  # mJ
_PCIE_TX, _PCIE_RX = _Field(197), _Field(198)
_NVLINK_DATA_TX, _NVLINK_DATA_RX = _Field(138, _ALL_LINKS, 10), _Field(139, _ALL_LINKS, 10)  # KiB
_NVLINK5_TX, _NVLINK5_RX = _Field(202, _ALL_LINKS), _Field(204, _ALL_LINKS)
_ECC_SINGLE, _ECC_DOUBLE = _Field(3), _Field(4)  # since the driver was loaded

# By the name in Reading: the first that a device has counts.
_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "energy_mj": (_TOTAL_ENERGY,),
    "pcie_rx_bytes": (_PCIE_RX,),
    "pcie_tx_bytes": (_PCIE_TX,),
    "nvlink_rx_bytes": (_NVLINK_DATA_RX, _NVLINK5_RX),
    "nvlink_tx_bytes": (_NVLINK_DATA_TX, _NVLINK5_TX),
    "ecc_corrected": (_ECC_SINGLE,),
    "ecc_uncorrected": (_ECC_DOUBLE,),
}
# By NVML's type: the member of the union, and its width where it is a counter.
_TYPES = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: ("uiVal", 32),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: ("ulVal", 64),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: ("ullVal", 64),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: ("sllVal", 63),
}


class FieldValues:
    """The counters of one device; a field that it has not is asked for once."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._fields: dict[str, tuple[_Field, ...]] = dict(_FIELDS)
        self._prepare()

    def has(self, name: str) -> bool:
        """May it still come this way?"""
        return name in self._fields and not self._calls.is_out("nvmlDeviceGetFieldValues")

    def read(self) -> Mapping[str, Counter]:
        """What there is, by the name in Reading; raises GoneError."""
        if not self._names:
            return {}
        if not self._calls.gives("nvmlDeviceGetFieldValues", len(self._names), self._values_ref):
            return {}
        found: dict[str, Counter] = {}
        missing = False
        for name, value in zip(self._names, self._values, strict=True):
            code = value.nvmlReturn
            if code != SUCCESS:
                check_gone(code)
                missing = self._without(name, code) or missing
                continue
            kind = _TYPES.get(value.valueType)
            if kind is not None:
                shift = self._fields[name][0].shift
                found[name] = Counter(getattr(value.value, kind[0]) << shift, kind[1] + shift)
        if missing:
            self._prepare()
        return found

    def _without(self, name: str, code: int) -> bool:
        """It did not come: True if it has to be asked for differently from now on, or not at all."""
        what = f"{name} (field {self._fields[name][0].number})"
        self._calls.failed(what, code)
        if not self._calls.is_out(what):
            return False
        others = self._fields.pop(name)[1:]
        if others:
            self._fields[name] = others
        return True

    def _prepare(self) -> None:
        self._names = list(self._fields)
        self._values: Any = (pynvml.c_nvmlFieldValue_t * len(self._names))()
        for value, fields in zip(self._values, self._fields.values(), strict=True):
            value.fieldId, value.scopeId = fields[0].number, fields[0].scope
        self._values_ref = ctypes.byref(self._values)
