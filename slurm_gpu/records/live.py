"""Live values: what a node's devices do now. They are kept in memory only, and soon forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.records import fields

MAX_DEVICES = 512
MAX_JOBS = 1000
MAX_REASONS = 64
MAX_HOST_VALUES = 64
IDLE_PCT = 1.0
"""Utilisation up to this is idle."""
QUANTITIES = (
    *("util_pct", "idle_s", "mem_used_mib", "mem_used_frac", "power_w", "temp_c", "sm_clock_mhz"),
    *("sm_active_frac", "tensor_frac", "processes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """The last values of one device, and the jobs that hold it; None = not measured."""

    util_pct: float | None = None
    idle_s: float | None = None
    """For so long no reading has been above IDLE_PCT, those between two shipments included; None also where
    none has been since slurm-gpud looks."""
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
        """A dict that json.dumps takes; gaps are left out."""
        return fields.to_wire(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A node at `at_s` (wall clock): its devices by UUID, and the host's own values by name with unit."""

    at_s: float
    devices: Mapping[str, LiveDevice] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """A dict that json.dumps takes; gaps are left out."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any) -> Live:
        """Check and build from decoded JSON, unknown fields ignored; raises RecordError naming the field."""
        fields.an_object("live", wire)
        if wire.get("at_s") is None:
            raise RecordError("at_s is missing")
        devices = fields.mapping("devices", _or_empty(wire, "devices"), "uuid: values", MAX_DEVICES)
        host = fields.mapping("host", _or_empty(wire, "host"), "name: number", MAX_HOST_VALUES)
        return cls(
            at_s=fields.number("at_s", wire["at_s"], high=fields.MAX_MOMENT_S),
            devices={fields.word("devices", uuid): _device(uuid, item) for uuid, item in devices.items()},
            host={
                fields.word("host", name): fields.quantity(f"host.{name}", value)
                for name, value in host.items()
                if value is not None
            },
        )


def _or_empty(wire: Mapping[str, Any], name: str) -> Any:
    value = wire.get(name)
    return {} if value is None else value


def _device(uuid: str, wire: Any) -> LiveDevice:
    fields.an_object(f"devices.{uuid}", wire)
    amounts = {name: fields.quantity(name, wire[name]) for name in QUANTITIES if wire.get(name) is not None}
    reasons, jobs = wire.get("throttle"), wire.get("jobs")
    return LiveDevice(
        **amounts,
        throttle=None
        if reasons is None
        else tuple(fields.word("throttle", item) for item in _list("throttle", reasons, MAX_REASONS)),
        jobs=()
        if jobs is None
        else tuple(fields.job_number("jobs", item) for item in _list("jobs", jobs, MAX_JOBS)),
    )


def _list(name: str, value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise RecordError(f"{name}: must be a list of at most {most}")
    return value
