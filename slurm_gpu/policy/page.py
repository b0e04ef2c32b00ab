"""A policy as a page for the people it binds: every rule, for whom, how much, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from slurm_gpu.policy.limittext import limit_texts, limits_json
from slurm_gpu.policy.model import Group, Limits, Mode, Per, Policy, Rule, RuleException

_WIDTH = 88
ONE_GPU = "All shards of a job on a node come from one GPU; a job that asks for more could never start."
"""Why job_submit refuses by the rule one-gpu, which no policy holds."""


def render_page(policy: Policy) -> str:
    """Plain text, at most 88 columns."""
    return "\n".join(_page(policy))


def to_json(policy: Policy) -> dict[str, Any]:
    """The same with stable keys; GPUs as numbers, walltime in seconds, days as YYYY-MM-DD."""
    return {
        "contact": policy.contact,
        "on_error": str(policy.on_error),
        "groups": {
            group.name: {
                **{key: list(names) for key, names in _conditions(group)},
                **({} if group.until is None else {"until": group.until.isoformat()}),
            }
            for group in policy.groups.values()
        },
        "rules": [
            {
                "id": rule.id,
                "for": rule.group,
                "per": str(rule.per),
                "why": rule.why,
                "mode": str(rule.mode),
                "on_error": str(rule.on_error),
                "limits": limits_json(rule.limits),
            }
            for rule in policy.rules
        ],
        "exceptions": [
            {
                "rule": exception.rule,
                "user": exception.user,
                "limits": limits_json(exception.limits),
                "until": exception.until.isoformat(),
                "why": exception.why,
                "granted_by": exception.granted_by,
            }
            for exception in policy.exceptions
        ],
    }


def _page(policy: Policy) -> Iterator[str]:
    yield "Rules for jobs on this cluster"
    yield ""
    if not policy.rules:
        yield "There are none."
    for rule in policy.rules:
        yield from _rule(rule, policy.groups[rule.group])
        for exception in policy.exceptions:
            if exception.rule == rule.id:
                yield from _exception(exception, rule.per)
        yield ""
    yield "one-gpu  (built in, where GPUs are divided into shards)"
    yield from _wrapped(ONE_GPU)
    yield ""
    yield "A job must fit every rule that is for it. Each task of a job array counts as one job;"
    yield "shards count as their part of a GPU. `slurm-gpu explain -- sbatch ...` tells before you submit."
    if policy.contact:
        yield f"Questions: {policy.contact}"


def _rule(rule: Rule, group: Group) -> Iterator[str]:
    yield f"{rule.id}  (for {group.name}: {_who(group)})"
    yield from _wrapped(rule.why)
    for line in _limit_lines(rule.limits, rule.per):
        yield f"    {line}"
    if rule.mode is Mode.ADVISE:
        yield "    Advice: jobs beyond it are accepted, with a message."
    elif rule.mode is Mode.OBSERVE:
        yield "    On trial: jobs beyond it are only counted."


def _exception(exception: RuleException, per: Per) -> Iterator[str]:
    limits = ", ".join(_limit_lines(exception.limits, per))
    granted = f", granted by {exception.granted_by}" if exception.granted_by else ""
    what = f"Exception until {exception.until.isoformat()} for {exception.user}: {limits}"
    yield from _wrapped(f"{what} ({exception.why}{granted})")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _who(group: Group) -> str:
    conditions = [
        f"{key.replace('_', ' ').replace('unix', 'UNIX')} {', '.join(names)}"
        for key, names in _conditions(group)
    ]
    who = " and ".join(conditions) if conditions else "every job"
    return who if group.until is None else f"{who}; until {group.until.isoformat()}"


def _conditions(group: Group) -> list[tuple[str, tuple[str, ...]]]:
    pairs = [
        ("users", group.users),
        ("unix_groups", group.unix_groups),
        ("accounts", group.accounts),
        ("qos", group.qos),
        ("partitions", group.partitions),
    ]
    return [(key, names) for key, names in pairs if names is not None]


def _limit_lines(limits: Limits, per: Per) -> list[str]:
    scope = {Per.USER: " per user", Per.GROUP: " for the whole group", Per.JOB: " per job"}[per]
    return [f"{text}{scope}" for text in limit_texts(limits)]
