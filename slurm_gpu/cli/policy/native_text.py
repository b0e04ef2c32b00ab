"""Format Slurm's own limits for `policy plan`, `apply` and `status`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from slurm_gpu.policy.native.difference import LimitChange
from slurm_gpu.policy.native.plan import NativePlan
from slurm_gpu.policy.native.stranded import Stranded
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind
from slurm_gpu.text.units import few

# Maximum number of users with the same change that are listed by name.
_SHOWN_USERS = 4


def step_lines(steps: Iterable[LimitChange]) -> list[str]:
    """Return a line per change; users of an account with the same change share a line."""
    alike: dict[LimitChange, list[str]] = {}
    for step in steps:
        anonymous = replace(step, entity=replace(step.entity, user=""))
        alike.setdefault(anonymous, []).append(step.entity.user)
    return [
        str(replace(step, entity=replace(step.entity, user=users[0])))
        if len(users) == 1
        else str(step).replace(
            str(step.entity), f"users {few(users, _SHOWN_USERS)} in account {step.entity.name}", 1
        )
        for step, users in alike.items()
    ]


def done_lines(plan: NativePlan) -> list[str]:
    """Return one line for each QOS that an apply created and each limit that it changed."""
    made = [f"QOS {one.name}: created ({one.description})" for one in plan.new_qos]
    return [*made, *step_lines(plan.difference.steps)]


def plan_lines(plan: NativePlan) -> Iterator[str]:
    """Yield the lines of a plan about Slurm's own limits."""
    if plan.absent is not None:
        yield f"Slurm's own limits: {plan.absent}."
    else:
        steps = [*map(str, plan.new_qos), *step_lines(plan.difference.steps)]
        yield f"Slurm's own limits: {'to change' if steps else 'nothing to change'}"
        yield from _indented(steps)
    yield from warning_lines(plan)
    alone = [gap for gap in plan.gaps if not gap.unenforced]
    if alone:
        yield "Enforced only by job_submit.lua:"
        yield from _indented(f"{gap.rule}: {gap.key}: {gap.why}" for gap in alone)


def warning_lines(plan: NativePlan) -> Iterator[str]:
    """Yield the warnings that both a plan and an apply print."""
    if plan.drift:
        yield "Changed by hand since the last apply:"
        yield from _indented(map(str, plan.drift))
    yield from stranded_lines(plan.stranded)
    if plan.unenforced:
        yield "Nothing enforces these limits on running jobs:"
        yield from _indented(f"{gap.rule}: {gap.key}: {gap.why}" for gap in plan.unenforced)
    if plan.difference.remarks:
        yield "Also:"
        yield from _indented(plan.difference.remarks)


def stranded_lines(stranded: Iterable[Stranded]) -> Iterator[str]:
    """Yield lines about the queued jobs that could never start after the change, if there are any."""
    lines = list(map(str, stranded))
    if lines:
        yield "Queued jobs that could never start:"
        yield from _indented(lines)


def plan_json(plan: NativePlan) -> dict[str, Any]:
    """Return the plan with stable keys; limits are integers (memory in MiB, MaxWall in minutes) or None."""
    return {
        "absent": plan.absent,
        "new_qos": [one.name for one in plan.new_qos],
        "steps": [
            {
                **_entity(step.entity),
                "field": step.limit.name,
                "item": step.limit.item or None,
                "old": step.old,
                "new": step.new,
                "rule": step.rule or None,
            }
            for step in plan.difference.steps
        ],
        "drift": [
            {
                **_entity(one.owned.entity),
                "field": one.owned.limit.name,
                "item": one.owned.limit.item or None,
                "applied": one.owned.value,
                "found": one.found,
                "rule": one.owned.rule,
            }
            for one in plan.drift
        ],
        "stranded": [
            {
                "job_id": one.job.job_id,
                **_entity(one.entity),
                "user": one.job.user,
                "field": one.limit.name,
                "item": one.limit.item or None,
                "limit": one.value,
                "requested": one.requested,
                "remedy": one.remedy,
            }
            for one in plan.stranded
        ],
        "gaps": [
            {"rule": gap.rule, "key": gap.key, "why": gap.why, "enforced_by_lua": not gap.unenforced}
            for gap in plan.gaps
        ],
        "remarks": list(plan.difference.remarks),
    }


def _entity(entity: Entity) -> dict[str, str | None]:
    is_qos = entity.kind is EntityKind.QOS
    return {
        "qos": entity.name if is_qos else None,
        "account": None if is_qos else entity.name,
        "user": entity.user or None,
    }


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
