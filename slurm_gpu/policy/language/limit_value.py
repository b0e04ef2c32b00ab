"""Read and change limits that consist of one number (mgpu, MiB or a count)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit, number_of
from slurm_gpu.policy.language.model import GpuLimit, Policy, PolicyRule
from slurm_gpu.text.units import format_mgpu


def single_value(rule: PolicyRule, key: str) -> int | None:
    """Return the limit as one number (mgpu, MiB or a count); None if it is not set or is set by type."""
    value = LIMITS[key].of(rule.limits)
    if isinstance(value, GpuLimit):
        return value.all_mgpu
    return number_of(value)


def with_value(policy: Policy, rule_id: str, key: str, value: int) -> Policy:
    """Return the policy with the value of one limit replaced."""
    kind = LIMITS[key]
    new: dict[str, Any] = {kind.field: GpuLimit(value) if kind.measure is LimitUnit.GPUS else value}
    return replace(
        policy,
        rules=tuple(
            replace(rule, limits=replace(rule.limits, **new)) if rule.id == rule_id else rule
            for rule in policy.rules
        ),
    )


def value_text(key: str, value: int) -> str:
    """Return the value as it is written in policy.yaml."""
    kind: LimitKind = LIMITS[key]
    if kind.measure is LimitUnit.GPUS:
        return format_mgpu(value)
    if kind.measure is LimitUnit.MEMORY:
        return f"{value // 1024}G" if value % 1024 == 0 else f"{value}M"
    return str(value)
