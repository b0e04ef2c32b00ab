"""Expand a rule with tiers, group exceptions or `over_limit:` into rules; at most one applies to a job."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_gpu.policy.language.amounts import GpuLimit, JobAmounts
from slurm_gpu.policy.language.limits import LimitValue, is_empty, set_limits
from slurm_gpu.policy.language.membership import is_among, with_required
from slurm_gpu.policy.language.model import Dated, Group, Policy, PolicyRule

Amounts = TypeVar("Amounts", bound=JobAmounts)

_ONE_DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _RulePart(Dated):
    """The limits of the jobs of one group, or of all jobs that are in no earlier group."""

    rule: PolicyRule
    group: str | None
    from_day: dt.date | None
    until: dt.date | None


def whole_rules(policy: Policy) -> tuple[PolicyRule, ...]:
    """Return the rules as they are in the file."""
    return tuple({rule.whole.id: rule.whole for rule in policy.rules}.values())


def written_groups(policy: Policy) -> dict[str, Group]:
    """Return the groups, except those that were created for parts of rules."""
    return {name: group for name, group in policy.groups.items() if group.label is None}


def expanded(policy: Policy) -> Policy:
    """Return the policy with one rule and one group of jobs for each tier and each group exception.

    Each group must have fixed conditions, so a part is split where an earlier part starts or stops applying.
    The groups of a rule with `over_limit:` exclude the jobs with these options.
    """
    groups = written_groups(policy)
    rules: list[PolicyRule] = []
    for rule in whole_rules(policy):
        parts = _parts(rule, policy)
        is_single = len(parts) == 1 and not rule.tiers
        if is_single and rule.over_limit is None:
            rules.append(rule)
            continue
        excluded = [_over_limit_group(one) for one in moving_on(rule, policy)]
        groups |= {one.name: one for one in excluded}
        for part, group in _disjoint(rule, parts, groups):
            label = f"group {rule.group}" if is_single else group.label
            none_of = (*group.none_of, *(one.name for one in excluded))
            groups[group.name] = replace(group, none_of=none_of, label=label)
            if not is_empty(part.rule):
                rules.append(replace(part.rule, group=group.name, part_of=rule))
    return replace(policy, groups=groups, rules=tuple(rules))


def part_id(rule: PolicyRule, group: str | None) -> str:
    """Return the id of the part of a rule for a group; the part for all other jobs has the rule's id."""
    return rule.id if group is None else f"{rule.id} ({group})"


def moving_on(rule: PolicyRule, policy: Policy) -> list[PolicyRule]:
    """Return a rule with `over_limit:`, and the rules that may then move its jobs on; [] for other rules."""
    found = [] if rule.over_limit is None else [rule]
    for one in found:  # grows
        found += [
            other
            for other in whole_rules(policy)
            if other.over_limit is not None and other not in found and takes_over(other, one, policy)
        ]
    return found


def takes_over(rule: PolicyRule, other: PolicyRule, policy: Policy) -> bool:
    """Return whether a rule is for jobs with the options that another gives to jobs over its limits."""
    group, given = policy.groups.get(rule.group), other.over_limit
    if group is None or given is None:
        return False
    return any(
        (given.qos is not None and is_among(given.qos, one.qos or ()))
        or (given.partition is not None and is_among(given.partition, one.partitions or ()))
        for one in with_required(group, policy.groups)
    )


def _over_limit_group(rule: PolicyRule) -> Group:
    """Return the group of jobs with the options that a rule sets for jobs over its limits."""
    given = rule.over_limit
    assert given is not None
    texts = (given.partition and f"partition {given.partition}", given.qos and f"QOS {given.qos}")
    return Group(
        f"{rule.id} (over limit)",
        partitions=None if given.partition is None else (given.partition,),
        qos=None if given.qos is None else (given.qos,),
        label=" and ".join(filter(None, texts)),
    )


def _parts(rule: PolicyRule, policy: Policy) -> list[_RulePart]:
    """Return the parts of a rule in the order in which they apply."""
    parts = []
    for tier in rule.tiers:
        of_tier = replace(
            rule,
            id=part_id(rule, tier.group),
            why=tier.why or rule.why,
            limits=tier.limits,
            at_least=tier.at_least,
            options=tier.options,
            mode=tier.mode or rule.mode,
            tiers=(),
            location=tier.location,
        )
        parts.append(_RulePart(of_tier, tier.group, None, None))
    for exception in policy.exceptions:
        if exception.group is not None and exception.rule == rule.id:
            of_group = replace(
                rule,
                id=part_id(rule, exception.group),
                limits=_with(rule.limits, exception.limits),
                at_least=_with(rule.at_least, exception.at_least),
                adjust=(),
                location=exception.location,
            )
            parts.append(_RulePart(of_group, exception.group, exception.from_day, exception.until))
    if not rule.tiers:
        parts.append(_RulePart(rule, None, None, None))
    return parts


def _with(amounts: Amounts, own: Amounts) -> Amounts:
    """Return the limits or minimums of a rule, overridden by those that an exception sets."""
    new = {kind.field: _value(kind.of(amounts), value) for kind, value in set_limits(own)}
    return replace(amounts, **new)  # type: ignore[arg-type]


def _value(old: LimitValue, new: LimitValue) -> LimitValue:
    if isinstance(old, GpuLimit) and isinstance(new, GpuLimit):
        all_mgpu = old.all_mgpu if new.all_mgpu is None else new.all_mgpu
        return GpuLimit(all_mgpu, {**old.by_type_mgpu, **new.by_type_mgpu})
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **new}
    return new


def _disjoint(
    rule: PolicyRule, parts: Sequence[_RulePart], groups: Mapping[str, Group]
) -> Iterator[tuple[_RulePart, Group]]:
    """Yield each part with its group of jobs, once for each period in which that group does not change."""
    days = [_days(part, groups) for part in parts]
    starts = {dt.date.min, *(first for first, _ in days)}
    starts |= {last + _ONE_DAY for _, last in days if last != dt.date.max}
    spans = [
        (first, dt.date.max if after is None else after - _ONE_DAY)
        for first, after in itertools.zip_longest(sorted(starts), sorted(starts)[1:])
    ]
    of_rule = Group("") if not rule.group else groups[rule.group]
    for number, part in enumerate(parts):
        found: list[tuple[tuple[str, ...], dt.date, dt.date]] = []
        for first, last in spans:
            if not days[number][0] <= first <= days[number][1]:
                continue
            earlier = tuple(
                one.group
                for one, (begin, end) in zip(parts[:number], days[:number], strict=True)
                if one.group is not None and begin <= first <= end
            )
            if found and found[-1][0] == earlier and found[-1][2] + _ONE_DAY == first:
                found[-1] = (earlier, found[-1][1], last)
            else:
                found.append((earlier, first, last))
        for none_of, begin, end in found:
            first, last = max(begin, of_rule.days[0]), min(end, of_rule.days[1])
            if first > last:
                continue
            # No group in the file can have such a name.
            name = f"rule {part.rule.id}" if begin == found[0][1] else f"rule {part.rule.id} from {first}"
            of_part = Group(
                name,
                all_of=tuple(one for one in (rule.group, part.group) if one),
                none_of=none_of,
                from_day=None if first == dt.date.min else first,
                until=None if last == dt.date.max else last,
                label="all other jobs" if part.group is None else f"group {part.group}",
            )
            yield part, of_part


def _days(part: _RulePart, groups: Mapping[str, Group]) -> tuple[dt.date, dt.date]:
    """Return the first and the last day on which both a part and its group apply."""
    firsts, lasts = zip(
        part.days, Group("").days if part.group is None else groups[part.group].days, strict=True
    )
    return max(firsts), min(lasts)
