"""Find rules, tiers and exceptions that apply to no job."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.coverage import is_within
from slurm_gpu.policy.language.job_conditions import JobSize
from slurm_gpu.policy.language.limits import is_empty
from slurm_gpu.policy.language.membership import has_wildcard, with_required
from slurm_gpu.policy.language.model import Policy, PolicyRule
from slurm_gpu.policy.language.tiers import whole_rules

# A setting and the message about it.
Doubt = tuple[Location, str]


def idle_parts(policy: Policy) -> Iterator[Doubt]:
    """Yield the location and a message for each such rule, tier and group exception."""
    yield from _impossible_conditions(policy)
    # A tier or exception is compiled into one rule for each period in which its group does not change.
    parts_at = itertools.groupby(
        sorted((rule for rule in policy.rules if rule.part_of), key=lambda rule: str(rule.location)),
        key=lambda rule: rule.location,
    )
    for place, of_part in parts_at:
        rules = list(of_part)
        covering = [_covering_group(policy, rule) for rule in rules]
        separate = [_separate_groups(policy, rule) for rule in rules]
        if all(covering):
            yield place, f"rule {rules[0].id} never applies: all of its jobs are in {covering[0]}"
        elif separate[0] is not None and all(separate):
            both = " and ".join(separate[0])
            yield place, f"rule {rules[0].id} never applies: no job is in both groups {both}"
    applied = {rule.location for rule in policy.rules}
    parts = [(one.location, one.group) for one in policy.exceptions if one.user is None]
    for rule in whole_rules(policy):
        parts += [(tier.location, tier.group) for tier in rule.tiers if not is_empty(tier)]
    for location, of_group in parts:
        if location not in applied:
            yield location, f"this entry never applies to group {of_group}: the days do not overlap"


def _impossible_conditions(policy: Policy) -> Iterator[Doubt]:
    """Find conditions on jobs whose minimum is above their maximum."""
    for rule in policy.rules:
        if rule.jobs is None:
            continue
        least, most = rule.jobs.at_least, rule.jobs.at_most
        for field in dataclasses.fields(JobSize):
            low, high = getattr(least, field.name), getattr(most, field.name)
            if low is not None and high is not None and low > high:
                key = field.name.removesuffix("_s").replace("mgpu", "gpus")
                message = f"rule {rule.whole.id} never applies: the minimum of {key} is above the maximum"
                yield (*rule.whole.location, "jobs"), message


def _covering_group(policy: Policy, rule: PolicyRule) -> str | None:
    """Return an excluded group, in words, that contains all jobs of a rule; None if no group does."""
    group = policy.groups[rule.group]
    covering = (policy.groups[name] for name in group.none_of if is_within(policy, group.name, name))
    return next((one.label or f"group {one.name}" for one in covering), None)


def _separate_groups(policy: Policy, rule: PolicyRule) -> tuple[str, str] | None:
    """Return two groups that a rule requires, but that have no account or no user in common."""
    required = [one for one in with_required(policy.groups[rule.group], policy.groups) if one.name]
    for first, second in itertools.combinations(required, 2):
        for key in ("accounts", "users"):
            names, others = getattr(first, key), getattr(second, key)
            if names and others and _are_disjoint(names, others):
                return first.name, second.name
    return None


def _are_disjoint(names: Sequence[str], others: Sequence[str]) -> bool:
    plain = not any(has_wildcard(name) for name in (*names, *others))
    return plain and {*map(str.lower, names)}.isdisjoint(map(str.lower, others))
