"""The window: the last ten minutes of a run on a device at full resolution, sent on request."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from slurm_gpu.errors import RecordError
from slurm_gpu.plausible import MAX_MOMENT_S, range_of
from slurm_gpu.wire import fields

MAX_VALUES = 4096
_MAX_SERIES = 32
_FLOAT_BYTES = 4


# Series by their names in timelines: the name in windows, and the factor that makes it a fraction of 1.
FRACTIONS = {
    "util": ("util_pct", 0.01),
    "mem_used": ("mem_used_frac", 1.0),
    "sm_active": ("sm_active_frac", 1.0),
    "tensor": ("tensor_frac", 1.0),
    "dram": ("dram_frac", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of one (segment, device).

    Each series has one value per `width_s`, beginning at `start_s` (wall clock). The names of `series` are
    those of the fields of Reading, with units. The values are little-endian float32, with NaN for a missing
    value. All series have the same length.
    """

    job_id: int
    segment: str
    device: str
    start_s: float
    width_s: float
    series: Mapping[str, bytes]

    def values(self, name: str) -> list[float | None]:
        """Return a series with None for missing values; [] if it was never measured."""
        packed = self.series.get(name, b"")
        unpacked = struct.unpack(f"<{len(packed) // _FLOAT_BYTES}f", packed)
        return [None if math.isnan(value) else value for value in unpacked]

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps, with the series in base64."""
        return {
            "job_id": self.job_id,
            "segment": self.segment,
            "device": self.device,
            "start_s": self.start_s,
            "width_s": self.width_s,
            "series": {name: base64.b64encode(some).decode("ascii") for name, some in self.series.items()},
        }

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> Window:
        """Return a validated window from decoded JSON, ignoring unknown fields.

        If `dropped` is given, implausible values become NaN, and their series are added to `dropped`. An
        invalid field raises RecordError, which names the field.
        """
        window = cls(**fields.checked("a window", wire, _CHECKS, _CHECKS))
        return window if dropped is None else window.plausible(dropped)

    def plausible(self, dropped: fields.Dropped) -> Self:
        """Return the window with NaN instead of implausible values, and add their series to `dropped`."""
        series = dict(self.series)
        for name in series:
            within, values = range_of(name), self.values(name)
            wrong = [value for value in values if value is not None and not within.has(value)]
            if wrong:
                series[name] = pack(v if v is None or within.has(v) else None for v in values)
                why = f"{len(wrong)} values like {wrong[0]:g} must be from {within.low:g} to {within.high:g}"
                dropped[f"series.{name}"] = f"series.{name}: {why}"
        return replace(self, series=series)


def pack(values: Iterable[float | None]) -> bytes:
    """Return a series in the format of Window.series, with NaN for None."""
    floats = [math.nan if value is None else value for value in values]
    return struct.pack(f"<{len(floats)}f", *floats)


def _series(name: str, value: Any) -> Mapping[str, bytes]:
    given = fields.mapping(name, value, "name: base64", _MAX_SERIES)
    series = {fields.word(name, key): _packed(f"{name}.{key}", item) for key, item in given.items()}
    lengths = {key: len(some) // _FLOAT_BYTES for key, some in series.items()}
    if len(set(lengths.values())) > 1:
        raise RecordError(f"{name}: must be equally long, not {lengths}")
    return series


def _packed(name: str, value: Any) -> bytes:
    try:
        packed = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        packed = None
    if packed is None or len(packed) % _FLOAT_BYTES:
        raise RecordError(f"{name}: {fields.shown(value)} is not base64 of 4-byte numbers")
    if len(packed) > MAX_VALUES * _FLOAT_BYTES:
        raise RecordError(f"{name}: {len(packed) // _FLOAT_BYTES} values are more than {MAX_VALUES}")
    return packed


_CHECKS: fields.Checks = {
    "job_id": fields.job_number,
    "segment": fields.segment,
    "device": fields.word,
    "start_s": lambda name, value: fields.number(name, value, high=MAX_MOMENT_S),
    "width_s": lambda name, value: fields.number(name, value, 0.001, 3600.0),
    "series": _series,
}
