"""The record: the statistics of one job on one device during one segment.

A record is cumulative: the node repeatedly ships the whole record with an increasing `seq`, and the database
keeps the newest version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import fields
from slurm_gpu.wire.identity import IDENTITY, check_times
from slurm_gpu.wire.quantities import Histogram, Mean, Total, read_histogram, read_mean, read_total
from slurm_gpu.wire.timeline import Timeline, read_timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The cumulative statistics of one (segment, device); docs/contracts.md explains each field."""

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
    allocated_s: float
    sampled_s: float
    uptime_s: float | None = None
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
    energy_sampled_s: float | None = None
    pcie_rx_bytes: Total | None = None
    pcie_tx_bytes: Total | None = None
    nvlink_rx_bytes: Total | None = None
    nvlink_tx_bytes: Total | None = None
    ecc_corrected: Total | None = None
    ecc_uncorrected: Total | None = None
    throttle_s: Mapping[str, float] | None = None
    timeline: Timeline | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps without None values, since a missing key means null on the wire."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> Record:
        """Return a validated record from decoded JSON, ignoring unknown fields.

        A missing or invalid identity field raises RecordError, which names the field. Any other invalid field
        is omitted and added to `dropped`, or raises RecordError if `dropped` is None.
        """
        values = fields.checked("a record", with_current_names(wire), _CHECKS, _IDENTITY, dropped)
        if dropped is not None and "sampled_s" in dropped:
            values["sampled_s"] = _sampled_s(values)
        elif "sampled_s" not in values:
            raise RecordError("sampled_s is missing")
        check_times(values["first_s"], values["last_s"])
        for name, why in _contradictions(values):
            if dropped is None:
                raise RecordError(why)
            dropped[name] = why
            if name == "sampled_s":
                values[name] = _sampled_s(values)
            else:
                del values[name]
        return cls(**values)


def as_of_wire_1(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the field names of version 1, since the previous release reads no others."""
    return {_NAME_IN_WIRE_1.get(name, name): value for name, value in wire.items()}


def with_current_names(wire: Any) -> Any:
    """Return a record of version 1 with the names of this version; return any other value unchanged."""
    if not isinstance(wire, Mapping) or wire.keys().isdisjoint(NAMES_OF_WIRE_1):
        return wire
    return {NAMES_OF_WIRE_1.get(name, name): value for name, value in wire.items()}


def _contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields that cover more than the allocated time, each with the reason."""
    # One second of tolerance for rounded times.
    most_s = values["allocated_s"] + 1.0
    for name in ("util_hist_ms", "mem_hist_ms"):
        histogram = values.get(name)
        if histogram is not None and sum(histogram.values()) > most_s * 1000:
            yield name, f"{name}: sums to more than allocated_s {values['allocated_s']}"
    if values["sampled_s"] > most_s:
        yield "sampled_s", f"sampled_s: {values['sampled_s']} exceeds allocated_s {values['allocated_s']}"


def _sampled_s(values: Mapping[str, Any]) -> float:
    """Return the sampled time that the histograms imply."""
    histogram = values.get("mem_hist_ms" if values.get("device_util_pct") is None else "util_hist_ms")
    return 0.0 if histogram is None else sum(histogram.values()) / 1000


def _reasons(name: str, value: Any) -> Mapping[str, float]:
    given = fields.mapping(name, value, "reason: seconds", 64)
    return {fields.word(name, key): fields.seconds(f"{name}.{key}", item) for key, item in given.items()}


WHOLE_GPU_MGPU = 1000
# Field names in nodes and spools of the previous release, and the current ones.
NAMES_OF_WIRE_1: Mapping[str, str] = {"held_s": "allocated_s"}
_NAME_IN_WIRE_1 = {new: old for old, new in NAMES_OF_WIRE_1.items()}
_FIELDS = dataclasses.fields(Record)
_CHECKS: fields.Checks = {
    **IDENTITY,
    "device": fields.word,
    **dict.fromkeys(("uptime_s", "allocated_s", "sampled_s"), fields.seconds),
    **dict.fromkeys(("no_process_s", "suspended_s", "energy_sampled_s"), fields.seconds),
    "granted_mgpu": partial(fields.whole, high=WHOLE_GPU_MGPU),
    **dict.fromkeys(("util_hist_ms", "mem_hist_ms"), read_histogram),
    **{f.name: read_mean for f in _FIELDS if f.type == "Mean | None"},
    **{f.name: read_total for f in _FIELDS if f.type == "Total | None"},
    "throttle_s": _reasons,
    "timeline": read_timeline,
}
_REQUIRED = frozenset(f.name for f in _FIELDS if "None" not in str(f.type))
# An invalid sampled_s is replaced by the time in the histograms.
_IDENTITY = _REQUIRED - {"sampled_s"}
