"""The record: what one unbroken watch saw of one job on one device (docs/contracts.md, section 1).

A record is cumulative: the node ships it whole, again and again, with a growing `seq`, and the database
keeps the newest. 0 is a measurement, None is a gap; every statistic carries the seconds it stands for, so
that records of several segments and devices merge without bias.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from slurm_gpu.errors import RecordError

WIRE_VERSION = 1
HISTOGRAM_BINS = 101

_HEX = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9_.:+/-]{1,255}")
_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mean:
    """A quantity's time-weighted mean, minimum and maximum over `seconds` of measurement."""

    seconds: float
    mean: float
    min: float
    max: float

    def to_wire(self) -> list[float]:
        """As JSON carries it: [seconds, mean, min, max]."""
        return [self.seconds, self.mean, self.min, self.max]


@dataclass(frozen=True, slots=True)
class Total:
    """A counter's growth over `seconds` of measurement."""

    seconds: float
    total: float

    def to_wire(self) -> list[float]:
        """As JSON carries it: [seconds, total]."""
        return [self.seconds, self.total]


Histogram = Mapping[int, int]
"""Milliseconds spent at each whole percent, {0…100: ms}; absent percents have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One (segment, device), cumulative. Field names carry their units; docs/contracts.md explains each."""

    cluster: str
    job_id: int
    restart: int
    prolog_s: int
    node: str
    boot_id: str
    segment: str
    device: str
    seq: int
    final: bool
    first_s: int
    last_s: int
    held_s: float
    sampled_s: float
    no_process_s: float | None = None
    suspended_s: float | None = None
    granted_mgpu: int | None = None
    util_hist_ms: Histogram | None = None
    mem_hist_ms: Histogram | None = None
    device_util_pct: Mean | None = None
    mem_used_mib: Mean | None = None
    mem_used_frac: Mean | None = None
    mem_util_pct: Mean | None = None
    sm_active_frac: Mean | None = None
    sm_occupancy_frac: Mean | None = None
    tensor_frac: Mean | None = None
    dram_frac: Mean | None = None
    power_w: Mean | None = None
    temp_c: Mean | None = None
    sm_clock_mhz: Mean | None = None
    processes: Mean | None = None
    energy_j: Total | None = None
    pcie_rx_bytes: Total | None = None
    pcie_tx_bytes: Total | None = None
    nvlink_rx_bytes: Total | None = None
    nvlink_tx_bytes: Total | None = None
    ecc_corrected: Total | None = None
    ecc_uncorrected: Total | None = None
    throttle_s: Mapping[str, float] | None = None

    def to_wire(self) -> dict[str, Any]:
        """A dict that json.dumps takes; gaps are left out, since missing means null on the wire."""
        wire: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            if isinstance(value, Mean | Total):
                value = value.to_wire()
            elif isinstance(value, Mapping):
                value = {str(key): item for key, item in value.items()}
            wire[f.name] = value
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> Record:
        """Check and build a record from decoded JSON; unknown fields are ignored.

        Raises RecordError naming the first field that is missing or cannot be what it says.
        """
        if not isinstance(wire, dict):
            raise RecordError(f"a record must be an object, not {type(wire).__name__}")
        values: dict[str, Any] = {}
        for name, read in _READERS.items():
            value = wire.get(name)
            if value is None:
                if name in _REQUIRED:
                    raise RecordError(f"{name} is missing")
                continue
            values[name] = read(name, value)
        record = cls(**values)
        record._check_whole()
        return record

    def _check_whole(self) -> None:
        if self.last_s < self.first_s:
            raise RecordError(f"last_s: {self.last_s} lies before first_s {self.first_s}")
        # Clocks round; a second of slack, but never more sampling than holding.
        if self.sampled_s > self.held_s + 1.0:
            raise RecordError(f"sampled_s: {self.sampled_s} exceeds held_s {self.held_s}")
        for name in ("util_hist_ms", "mem_hist_ms"):
            histogram = getattr(self, name)
            if histogram is not None and sum(histogram.values()) > (self.held_s + 1.0) * 1000:
                raise RecordError(f"{name}: sums to more than held_s {self.held_s}")


def _number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"{name}: {value!r} must be a number")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits is valid JSON
        number = math.inf
    if not (math.isfinite(number) and low <= number <= high):
        raise RecordError(f"{name}: {str(value)[:40]} must lie from {low:g} to {high:g}")
    return number


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _INT64:
        raise RecordError(f"{name}: {value!r} must be a whole number ≥ 0")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RecordError(f"{name}: {value!r} must be true or false")
    return value


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise RecordError(f"{name}: {value!r} must be a name of 1 to 255 letters, digits and _.:+/-")
    return value


def _segment(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise RecordError(f"{name}: {value!r} must be 16 hexadecimal digits")
    return value


def _histogram(name: str, value: Any) -> Histogram:
    if not isinstance(value, dict):
        raise RecordError(f"{name}: must be an object of percent: milliseconds")
    histogram: dict[int, int] = {}
    for key, milliseconds in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and int(key) < HISTOGRAM_BINS):
            raise RecordError(f"{name}: {key!r} must be a whole percent from 0 to 100")
        histogram[int(key)] = _integer(f"{name}[{key}]", milliseconds)
    return histogram


def _list(name: str, value: Any, length: int) -> list[float]:
    if not isinstance(value, list) or len(value) != length:
        raise RecordError(f"{name}: {value!r} must be a list of {length} numbers")
    return [_number(name, item) for item in value]


def _mean(name: str, value: Any) -> Mean:
    seconds, mean, low, high = _list(name, value, 4)
    slack = 1e-6 * max(1.0, high)
    if not low - slack <= mean <= high + slack:
        raise RecordError(f"{name}: mean {mean:g} lies outside min {low:g} … max {high:g}")
    return Mean(seconds, mean, low, high)


def _total(name: str, value: Any) -> Total:
    return Total(*_list(name, value, 2))


def _reasons(name: str, value: Any) -> Mapping[str, float]:
    if not isinstance(value, dict) or len(value) > 64:
        raise RecordError(f"{name}: must be an object of reason: seconds")
    return {_word(name, key): _number(name, item) for key, item in value.items()}


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("cluster", "node", "boot_id", "device"), _word),
    "segment": _segment,
    "final": _flag,
    **dict.fromkeys(("job_id", "restart", "prolog_s", "seq", "first_s", "last_s", "granted_mgpu"), _integer),
    **dict.fromkeys(("held_s", "sampled_s", "no_process_s", "suspended_s"), _number),
    **dict.fromkeys(("util_hist_ms", "mem_hist_ms"), _histogram),
    **{f.name: _mean for f in fields(Record) if f.type == "Mean | None"},
    **{f.name: _total for f in fields(Record) if f.type == "Total | None"},
    "throttle_s": _reasons,
}
_REQUIRED = frozenset(f.name for f in fields(Record) if "None" not in str(f.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened on a node at a moment, such as `gpu_lost`; key (node, boot_id, n)."""

    node: str
    boot_id: str
    n: int
    at_s: int
    kind: str
    device: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    @classmethod
    def from_wire(cls, wire: Any) -> Event:
        """Check and build an event from decoded JSON; raises RecordError naming the field."""
        if not isinstance(wire, dict):
            raise RecordError(f"an event must be an object, not {type(wire).__name__}")
        for name in ("node", "boot_id", "n", "at_s", "kind"):
            if wire.get(name) is None:
                raise RecordError(f"{name} is missing")
        data = wire.get("data")
        if data is not None and not isinstance(data, dict):
            raise RecordError(f"data: {data!r} must be an object")
        return cls(
            node=_word("node", wire["node"]),
            boot_id=_word("boot_id", wire["boot_id"]),
            n=_integer("n", wire["n"]),
            at_s=_integer("at_s", wire["at_s"]),
            kind=_word("kind", wire["kind"]),
            device=None if wire.get("device") is None else _word("device", wire["device"]),
            job_id=None if wire.get("job_id") is None else _integer("job_id", wire["job_id"]),
            data={} if data is None else data,
        )


def histogram_mean(histogram: Histogram) -> float | None:
    """Time-weighted mean percent, Σ pct·ms / Σ ms; None where no time was measured."""
    total = sum(histogram.values())
    return sum(percent * ms for percent, ms in histogram.items()) / total if total else None


def histogram_quantile(histogram: Histogram, q: float) -> int | None:
    """The least percent at or below which a fraction `q` (0–1) of the measured time was spent."""
    total = sum(histogram.values())
    if not total:
        return None
    reached = 0
    for percent in sorted(histogram):
        reached += histogram[percent]
        if reached >= q * total and histogram[percent]:
            return percent
    raise AssertionError("unreachable: the whole histogram is at least q of itself")


def merge_histograms(histograms: Iterable[Histogram | None]) -> dict[int, int] | None:
    """Add up; None only where every part is a gap."""
    merged: dict[int, int] | None = None
    for histogram in histograms:
        if histogram is not None:
            merged = {} if merged is None else merged
            for percent, milliseconds in histogram.items():
                merged[percent] = merged.get(percent, 0) + milliseconds
    return merged


def merge_means(means: Iterable[Mean | None]) -> Mean | None:
    """Weight by seconds; parts without time count for nothing, and None only where every part is a gap."""
    parts = [mean for mean in means if mean is not None]
    if not parts:
        return None
    seconds = math.fsum(part.seconds for part in parts)
    weighed = [part for part in parts if part.seconds > 0]
    if not weighed:
        return parts[0]
    low, high = min(part.min for part in weighed), max(part.max for part in weighed)
    mean = math.fsum(part.mean * (part.seconds / seconds) for part in weighed)
    return Mean(seconds, min(max(mean, low), high), low, high)


def merge_totals(totals: Iterable[Total | None]) -> Total | None:
    """Add up; None only where every part is a gap."""
    parts = [total for total in totals if total is not None]
    if not parts:
        return None
    return Total(math.fsum(part.seconds for part in parts), math.fsum(part.total for part in parts))
