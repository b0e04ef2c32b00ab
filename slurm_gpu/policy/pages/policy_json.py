"""Write a policy as JSON with stable keys: memory in MiB, times in seconds, days as YYYY-MM-DD."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from slurm_gpu.policy.language.job_conditions import JobConditions
from slurm_gpu.policy.language.limit_text import limits_json
from slurm_gpu.policy.language.limits import LIMITS, LimitUnit
from slurm_gpu.policy.language.model import (
    Adjust,
    Bundle,
    CancelIdle,
    Colocation,
    GpuOwner,
    Hours,
    Policy,
    Urgent,
)
from slurm_gpu.policy.lua.bundle import bundle_reason
from slurm_gpu.policy.lua.colocation import colocation_settings
from slurm_gpu.policy.pages.page import conditions


def to_json(policy: Policy) -> dict[str, Any]:
    """Return a policy without the settings that only `policy apply` uses; null means that no limit is set."""
    return {
        "contact": policy.contact,
        "on_error": str(policy.on_error),
        "bundles": {bundle.name: _bundle(bundle) for bundle in policy.bundles.values()},
        "owners": {owner.group: _owner(owner) for owner in policy.owners},
        "urgent": None if policy.urgent is None else _urgent(policy.urgent),
        "colocation": None if policy.colocation is None else _colocation(policy.colocation),
        "cancel_idle": None if policy.cancel_idle is None else _cancel_idle(policy.cancel_idle),
        "groups": {
            group.name: {
                **{key: list(names) for key, names in conditions(group)},
                **group.days_json(),
            }
            for group in policy.groups.values()
        },
        "rules": [
            {
                "id": rule.id,
                "tier_of": None if rule.part_of is None else rule.part_of.id,
                "for": rule.group,
                "per": str(rule.per),
                "hard": rule.hard,
                "carry_over": rule.carry_over,
                "why": rule.why,
                "mode": str(rule.mode),
                "on_error": str(rule.on_error),
                "when": None if rule.when is None else _when(rule.when),
                "jobs": None if rule.jobs is None else _jobs(rule.jobs),
                "kind": None if rule.kind is None else str(rule.kind),
                "limits": limits_json(rule.limits),
                "at_least": limits_json(rule.at_least),
                "options": {option: str(need) for option, need in rule.options.items()},
                "set": None if rule.set is None else rule.set.table(),
                "defaults": None if rule.defaults is None else asdict(rule.defaults),
                "over_limit": None if rule.over_limit is None else rule.over_limit.table(),
                "adjust": {one.key: list(_bounds_json(one)) for one in rule.adjust},
            }
            for rule in policy.rules
        ],
        "exceptions": [
            {
                "rule": exception.rule,
                "user": exception.user,
                "group": exception.group,
                "limits": limits_json(exception.limits),
                "at_least": limits_json(exception.at_least),
                "from": None,
                "until": None,
                **exception.days_json(),
                "why": exception.why,
                "granted_by": exception.granted_by,
            }
            for exception in policy.exceptions
        ],
    }


def _bounds_json(bounds: Adjust) -> tuple[float, float]:
    """Return the bounds in the unit of the limit's value: GPUs, MiB or a count."""
    per_unit = 1000 if LIMITS[bounds.key].measure is LimitUnit.GPUS else 1
    return bounds.low / per_unit, bounds.high / per_unit


def _when(when: Hours) -> dict[str, Any]:
    """Return the days, with 0 for Monday, and the minutes since midnight; `to_min` is exclusive."""
    return {
        "days": sorted(when.days),
        "from_min": when.from_min,
        "to_min": when.to_min,
        "at": str(when.at),
    }


def _jobs(jobs: JobConditions) -> dict[str, Any]:
    """Return the conditions on jobs, with GPUs instead of mgpu."""
    sizes = {
        key: {
            "gpus": None if size.mgpu is None else size.mgpu / 1000,
            "nodes": size.nodes,
            "walltime_s": size.walltime_s,
        }
        for key, size in (("at_least", jobs.at_least), ("at_most", jobs.at_most))
    }
    return {
        **sizes,
        "gpu_types": jobs.gpu_types and list(jobs.gpu_types),
        "array": jobs.array,
        "names": jobs.names and list(jobs.names),
    }


def _owner(owner: GpuOwner) -> dict[str, Any]:
    return {
        "accounts": list(owner.accounts),
        "gpus": owner.gpus,
        "qos": owner.qos,
        "lend_in": owner.lend_in,
        "return_within_s": owner.return_within_s,
    }


def _urgent(urgent: Urgent) -> dict[str, Any]:
    return {
        "for": list(urgent.groups),
        "qos": urgent.qos,
        "jobs_running": urgent.jobs_running,
        "preempts": list(urgent.preempts),
        "why": urgent.why,
    }


def _colocation(colocation: Colocation) -> dict[str, Any]:
    groups = {
        "allowed_groups": None if colocation.allowed_groups is None else list(colocation.allowed_groups),
        "required_groups": list(colocation.required_groups),
    }
    return groups | colocation_settings(colocation) | {"why": colocation.why}


def _cancel_idle(cancel_idle: CancelIdle) -> dict[str, Any]:
    return {
        "for": None if cancel_idle.groups is None else list(cancel_idle.groups),
        "exempt": list(cancel_idle.exempt),
        "warn_s": list(cancel_idle.warn_s),
        "after_s": cancel_idle.after_s,
        "action": str(cancel_idle.action),
        "mode": str(cancel_idle.mode),
        "why": cancel_idle.why,
    }


def _bundle(bundle: Bundle) -> dict[str, Any]:
    return {
        "gpus": bundle.mgpu / 1000,
        "cpus": bundle.cpus,
        "memory_mib": bundle.memory_mib,
        "partitions": None if bundle.partitions is None else list(bundle.partitions),
        "gpu_types": None if bundle.gpu_types is None else list(bundle.gpu_types),
        "mode": str(bundle.mode),
        "why": bundle_reason(bundle),
    }
