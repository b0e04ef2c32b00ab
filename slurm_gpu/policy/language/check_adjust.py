"""Check the bounds within which the weekly adjustment may move limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slurm_gpu.config.checker import shown
from slurm_gpu.config.decoder import Decoder
from slurm_gpu.config.value_types import ValueType
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.amounts import RuleLimits
from slurm_gpu.policy.language.limit_value import single_value, value_text
from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit, Scope
from slurm_gpu.policy.language.model import Adjust, Mode, PolicyRule
from slurm_gpu.policy.language.value_types import COUNT, GPUS, MEMORY

# Limits on running jobs, because the model of the cluster can predict only the effects of changing these.
ADJUSTABLE = tuple(key for key, kind in LIMITS.items() if kind.scope is Scope.RUNNING)


def bound_type(kind: LimitKind) -> ValueType:
    """Return the type of the bounds for a limit."""
    return {LimitUnit.GPUS: GPUS, LimitUnit.MEMORY: MEMORY}.get(kind.measure, COUNT)


def check_adjust(decoder: Decoder, rule: PolicyRule) -> PolicyRule:
    """Return the rule with its bounds; report bounds that do not fit the rule's limits."""
    at = (*rule.location, "adjust")
    value = decoder.at(*at)
    table = decoder.mapping(at, value, tuple(LIMITS), "adjust")
    if value == {}:
        decoder.fail(at, "adjust is empty; write bounds such as {gpus_running: [8, 24]}")
    conditions = (rule.kind, rule.jobs, rule.when)
    if rule.mode is not Mode.ENFORCE or any(condition is not None for condition in conditions):
        message = "allowed only in rules with mode: enforce and without kind:, jobs: or when:"
        decoder.fail(at, f"adjust: {message}", key=True)
    rule = replace(rule, limits=rule.limits or RuleLimits(), adjust=())
    found = [_bounds(decoder, (*at, key), item, key, rule) for key, item in table.items()]
    return replace(rule, adjust=tuple(bounds for bounds in found if bounds is not None))


def _bounds(decoder: Decoder, at: Location, value: Any, key: str, rule: PolicyRule) -> Adjust | None:
    now = single_value(rule, key) if key in ADJUSTABLE else None
    if key not in ADJUSTABLE:
        problem = f"only limits on running jobs can be moved; allowed: {', '.join(ADJUSTABLE)}"
    elif LIMITS[key].of(rule.limits) is None:
        problem = f"rule {rule.id} does not set this limit"
    else:
        problem = "limits by GPU type cannot be moved; write one number for all types"
    if now is None:
        decoder.fail(at, f"{key!r}: {problem}", key=True)
        return None
    if not isinstance(value, list) or len(value) != 2:
        message = f"{key}: {shown(value)} must be two numbers, a minimum and a maximum, such as [8, 24]"
        decoder.fail(at, message)
        return None
    kind = bound_type(LIMITS[key])
    low, high = (decoder.single((*at, index), item, kind) for index, item in enumerate(value))
    if not (isinstance(low, int) and isinstance(high, int)):
        return None
    if not 0 < low < high:
        decoder.fail(at, f"{key}: {shown(value)} must be ascending and greater than 0")
    elif not low <= now <= high:
        decoder.fail(at, f"{key}: the limit, {value_text(key, now)}, is outside {shown(value)}")
    else:
        return Adjust(key, low, high)
    return None
