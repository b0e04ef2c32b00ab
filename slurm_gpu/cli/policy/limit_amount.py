"""Format the values of limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_gpu.policy.language.limits import LimitKind, LimitUnit
from slurm_gpu.text.units import format_duration, format_gpus, format_memory_mib, format_mgpu


def limit_amount(kind: LimitKind, value: Any) -> str:
    """Format a value of a limit with its unit."""
    if isinstance(value, Mapping) and kind.measure is LimitUnit.NAMES:
        return ", ".join(sorted(value))
    if isinstance(value, Mapping):
        steps = (value[index] for index in sorted(value))
        texts = (f"{limit_amount(kind, step['limit'])} from {format_gpus(step['mgpu'])}" for step in steps)
        return ", ".join(texts)
    if kind.measure is LimitUnit.GPUS:
        return format_mgpu(int(value))
    if kind.measure is LimitUnit.MEMORY:
        return "0" if value == 0 else format_memory_mib(value)
    if kind.measure is LimitUnit.WALLTIME:
        return format_duration(value)
    # Show three decimals, as refusals do, because small usage would otherwise be shown as 0.
    return f"{value:.3f}".rstrip("0").rstrip(".") if kind.measure is LimitUnit.HOURS else f"{value:.0f}"
