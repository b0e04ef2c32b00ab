"""Define live values: the last samples of a node's devices, stored briefly and only in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slurm_gpu.errors import RecordError
from slurm_gpu.plausible import MAX_MOMENT_S
from slurm_gpu.wire import fields

MAX_DEVICES = 512
MAX_JOBS = 1000
MAX_REASONS = 64
MAX_HOST_VALUES = 64
# The host value that counts how often the process that calls NVML exited in the last ten minutes, and the
# name of this value in version 1.
READER_EXITS = "reader_exits"
READER_EXITS_IN_WIRE_1 = "reader_deaths"
# Seconds between a node's posts of live values: while a reader requests them, and at other times.
LIVE_INTERVAL_S = 10.0
IDLE_LIVE_INTERVAL_S = 60.0
# Older values are outdated. The limit is the sum of the longer interval, its jitter and the duration of a
# slow answer.
LIVE_VALID_S = 90.0
# The nodes that must post live values every LIVE_INTERVAL_S for a reader: all, those with jobs on GPUs, or
# none.
Refresh = Literal["all", "jobs", "none"]
# Utilisation up to this counts as idle.
IDLE_PCT = 1.0
QUANTITIES = (
    *("util_pct", "idle_s", "mem_used_mib", "mem_used_frac", "power_w", "temp_c", "sm_clock_mhz"),
    *("sm_active_frac", "tensor_frac", "processes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """The last values of one device, and the jobs to which it is allocated. None means not measured."""

    util_pct: float | None = None
    idle_s: float | None = None
    """Seconds since the last sample above IDLE_PCT, including samples between shipments.

    The value is also None if no sample has been above IDLE_PCT since slurm-gpud started.
    """
    mem_used_mib: float | None = None
    mem_used_frac: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_active_frac: float | None = None
    tensor_frac: float | None = None
    processes: float | None = None
    throttle: Sequence[str] | None = None
    jobs: Sequence[int] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps without None values."""
        return fields.to_wire(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A node's live values at `at_s` (wall clock): devices by UUID, and host values by name with unit."""

    at_s: float
    devices: Mapping[str, LiveDevice] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps without None values."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> Live:
        """Return validated live values from decoded JSON, ignoring unknown fields.

        An invalid field raises RecordError, which names the field. If `dropped` is given, however, invalid
        values of devices and of the host are omitted and added to `dropped`.
        """
        fields.an_object("live", wire)
        if wire.get("at_s") is None:
            raise RecordError("at_s is missing")
        devices = fields.mapping("devices", _or_empty(wire, "devices"), "uuid: values", MAX_DEVICES)
        host = fields.mapping("host", _or_empty(wire, "host"), "name: number", MAX_HOST_VALUES)
        checks = {fields.word("host", name): _host_value for name in host}
        return cls(
            at_s=fields.number("at_s", wire["at_s"], high=MAX_MOMENT_S),
            devices={
                fields.word("devices", uuid): _device(uuid, item, dropped) for uuid, item in devices.items()
            },
            host=fields.checked("host", host, checks, (), dropped),
        )


def _or_empty(wire: Mapping[str, Any], name: str) -> Any:
    value = wire.get(name)
    return {} if value is None else value


def _host_value(name: str, value: Any) -> float:
    return fields.quantity(f"host.{name}", value)


def _device(uuid: str, wire: Any, dropped: fields.Dropped | None) -> LiveDevice:
    return LiveDevice(**fields.checked(f"devices.{uuid}", wire, _CHECKS, (), dropped))


def _reasons(name: str, value: Any) -> Sequence[str]:
    return tuple(fields.word(name, item) for item in _list(name, value, MAX_REASONS))


def _jobs(name: str, value: Any) -> Sequence[int]:
    return tuple(fields.job_number(name, item) for item in _list(name, value, MAX_JOBS))


def _list(name: str, value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise RecordError(f"{name}: must be a list of at most {most}")
    return value


_CHECKS: fields.Checks = {
    **dict.fromkeys(QUANTITIES, fields.quantity),
    "throttle": _reasons,
    "jobs": _jobs,
}
