"""The published times of calls of a real NVML, from call_times.yaml."""

from __future__ import annotations

from typing import Any

import yaml

from lab.nvml import SOURCES
from lab.simgpu.calls import CallTime
from lab.simgpu.creation import function_names

FILE = SOURCES / "call_times.yaml"


def call_times(*, upper: bool = False) -> dict[str, CallTime]:
    """Return the time of every function; with ``upper``, the worst case if there is one."""
    document = yaml.safe_load(FILE.read_text())
    functions = document["functions"]
    return {name: _time(functions.get(name, document["default"]), upper) for name in function_names()}


def _time(entry: dict[str, Any], upper: bool) -> CallTime:
    return CallTime(cpu_us=_value(entry, "us", upper), item_cpu_us=_value(entry, "item_us", upper))


def _value(entry: dict[str, Any], key: str, upper: bool) -> float:
    usual = float(entry.get(key, 0))
    return float(entry.get(f"upper_{key}", usual)) if upper else usual
