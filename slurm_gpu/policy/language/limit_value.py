"""Read and change limits that consist of one number (mgpu, MiB or a count)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slurm_gpu.policy.language.amounts import GpuLimit
from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit, number_of
from slurm_gpu.policy.language.model import Policy, PolicyRule, Tier
from slurm_gpu.policy.language.tiers import expanded, part_id, whole_rules
from slurm_gpu.text.units import format_mgpu


def single_value(rule: PolicyRule, key: str) -> int | None:
    """Return the limit as one number (mgpu, MiB or a count); None if it is unset or depends on the GPUs."""
    value = LIMITS[key].of(rule.limits)
    if isinstance(value, GpuLimit):
        return value.all_mgpu
    return number_of(value)


def with_value(policy: Policy, rule_id: str, key: str, value: int) -> Policy:
    """Return the policy with the value of one limit replaced."""
    kind = LIMITS[key]
    new: dict[str, Any] = {kind.field: GpuLimit(value) if kind.measure is LimitUnit.GPUS else value}

    def changed(part: PolicyRule | Tier, part_id: str) -> Any:
        return replace(part, limits=replace(part.limits, **new)) if part_id == rule_id else part

    rules = [
        replace(rule, tiers=tuple(changed(tier, part_id(rule, tier.group)) for tier in rule.tiers))
        if rule.tiers
        else changed(rule, rule.id)
        for rule in whole_rules(policy)
    ]
    return expanded(replace(policy, rules=tuple(rules)))


def value_text(key: str, value: int) -> str:
    """Return the value as it is written in policy.yaml."""
    kind: LimitKind = LIMITS[key]
    if kind.measure is LimitUnit.GPUS:
        return format_mgpu(value)
    if kind.measure is LimitUnit.MEMORY:
        return f"{value // 1024}G" if value % 1024 == 0 else f"{value}M"
    return str(value)
