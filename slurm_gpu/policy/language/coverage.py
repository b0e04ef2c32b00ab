"""Find limits that have no effect because another limit is always at least as strict."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.policy.language.hour_sums import UNITS, split_type
from slurm_gpu.policy.language.limits import LIMITS, Scope, flat_limits
from slurm_gpu.policy.language.membership import CONDITIONS, has_wildcard, is_among, with_required
from slurm_gpu.policy.language.model import Group, Mode, Per, Policy, PolicyRule
from slurm_gpu.policy.language.periods import includes

_STRENGTH = {Mode.OBSERVE: 0, Mode.ADVISE: 1, Mode.FIT: 2, Mode.ENFORCE: 2}

# Scope → itself and all wider scopes: a group's sum includes those of its users and accounts, and every sum
# includes each of its jobs. The jobs of a user may be in several accounts.
_WITHIN = {
    Per.JOB: (Per.JOB, Per.USER, Per.ACCOUNT, Per.GROUP),
    Per.USER: (Per.USER, Per.GROUP),
    Per.ACCOUNT: (Per.ACCOUNT, Per.GROUP),
    Per.GROUP: (Per.GROUP,),
}


@dataclass(frozen=True, slots=True)
class CoveredLimit:
    """A limit that has no effect because another one is always at least as strict."""

    rule: PolicyRule
    # The key as in flat_limits.
    key: str
    by: PolicyRule
    by_key: str


def covered_limits(policy: Policy) -> Iterator[CoveredLimit]:
    """Yield the limits that another limit makes redundant; of two equal limits, yield the later one."""
    flat = [flat_limits(rule.limits) for rule in policy.rules]
    excepted = {exception.rule for exception in policy.exceptions}  # do not bind all users
    conditions = {name: _conditions(group, policy.groups) for name, group in policy.groups.items()}
    wider_groups = {
        name: {wider for wider, of_wider in conditions.items() if _implies(own, of_wider)}
        for name, own in conditions.items()
    }
    for position, rule in enumerate(policy.rules):
        others = [
            number
            for number, other in enumerate(policy.rules)
            if other.group in wider_groups[rule.group] and other.whole.id not in excepted
        ]
        minimums = flat_limits(rule.at_least)
        for key, value in flat[position].items():
            if minimums.get(key) == value:
                continue  # the minimum that an exact amount sets has an effect
            wider = wider_keys(key)
            candidates = (
                (number, other_key)
                for number in others
                for other_key in (*wider, *(one for one in flat[number] if _is_longer(one, key)))
                if other_key in flat[number]
            )
            for other_position, other_key in candidates:
                if _covers(policy, flat, (other_position, other_key), (position, key)):
                    yield CoveredLimit(rule, key, policy.rules[other_position], other_key)
                    break


def binds_whenever(policy: Policy, wider: PolicyRule, rule: PolicyRule) -> bool:
    """Return whether `wider` applies to every job to which `rule` applies, in a mode at least as strict."""
    if (wider.mode is Mode.FIT) != (rule.mode is Mode.FIT) or wider.over_limit != rule.over_limit:
        return False  # one changes jobs, and the other refuses them or changes them in another way
    return (
        is_within(policy, rule.group, wider.group)
        and _STRENGTH[wider.mode] >= _STRENGTH[rule.mode]
        and (wider.kind is None or wider.kind == rule.kind)
        and (wider.when is None or wider.when == rule.when)
        and (wider.jobs is None or wider.jobs == rule.jobs)
    )


def is_within(policy: Policy, group: str, wider: str) -> bool:
    """Return whether every job in a group is certainly in a wider group."""
    own, other = (_conditions(policy.groups[name], policy.groups) for name in (group, wider))
    return _implies(own, other)


def _covers(
    policy: Policy, flat: Sequence[Mapping[str, object]], wider: tuple[int, str], limit: tuple[int, str]
) -> bool:
    """Return whether `wider` refuses all jobs that `limit` refuses; both are (position of rule, key)."""
    if wider == limit:
        return False
    other, rule = policy.rules[wider[0]], policy.rules[limit[0]]
    first, second = flat[wider[0]][wider[1]], flat[limit[0]][limit[1]]
    if not _at_most(first, second) or not _precedes(policy, other, rule):
        return False
    is_period = LIMITS[limit[1].partition(":")[0]].scope is Scope.PERIOD
    # Hours that are carried over raise the limit.
    if is_period and (other.carry_over or (rule.hard and not other.hard)):
        return False
    # If two limits cover each other, the later one is redundant.
    mutual = wider[1] == limit[1] and _at_most(second, first) and _precedes(policy, rule, other)
    mutual = mutual and rule.hard == other.hard and not rule.carry_over
    return not mutual or wider[0] < limit[0]


def _precedes(policy: Policy, wider: PolicyRule, rule: PolicyRule) -> bool:
    """Return whether `wider` sums over all jobs over which `rule` sums, whenever `rule` applies."""
    return wider.per in _WITHIN[rule.per] and binds_whenever(policy, wider, rule)


def wider_keys(key: str) -> tuple[str, ...]:
    """Return `key` and the keys of limits whose amounts include the amount of `key`."""
    base, _, part = key.partition(":")
    kind = LIMITS[base]
    if kind.scope is Scope.PERIOD:
        for_all_types = key.rpartition(":")[0]
        return (key, for_all_types) if ":" in for_all_types else (key,)
    bases = (base, kind.part_of) if kind.part_of else (base,)
    return (*(f"{wider}:{part}" for wider in bases), *bases) if part else bases


def _is_longer(wider: str, key: str) -> bool:
    """Return whether a limit's period contains that of another limit, for the same GPU type or all types."""
    (base, _, wider_part), (other, _, part) = (one.partition(":") for one in (wider, key))
    if base != other or base not in UNITS or not wider_part or not part or wider == key:
        return False
    (longer, of_longer), (period, gpu_type) = split_type(wider_part), split_type(part)
    return of_longer in (None, gpu_type) and includes(longer, period)


def _at_most(first: object, second: object) -> bool:
    """Return whether a limit with the value `first` (of flat_limits) refuses all jobs that `second` does."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() <= second.keys()  # allowed names
    edges = {0, *_edges(first), *_edges(second)}
    return all(_limit_at(first, edge) <= _limit_at(second, edge) for edge in edges)


def least_exceeds(least: object, most: object) -> int | None:
    """Return the smallest number of GPUs (mgpu) at which a minimum exceeds a limit; None if it never does."""
    edges = sorted({0, *_edges(least), *_edges(most)})
    return next((edge for edge in edges if _limit_at(least, edge, 0) > _limit_at(most, edge)), None)


def _edges(value: object) -> Iterator[int]:
    """Yield the numbers of GPUs (mgpu) at which a limit of flat_limits changes."""
    yield from (step["mgpu"] for step in value) if isinstance(value, list) else ()


def _limit_at(value: object, mgpu: int, absent: float = math.inf) -> float:
    """Return a limit of flat_limits for jobs with `mgpu`; `absent` if such jobs have no limit."""
    if isinstance(value, int | float):
        return value
    limit = absent
    for step in value if isinstance(value, list) else ():
        if step["mgpu"] <= mgpu:
            limit = step["limit"]
    return limit


@dataclass(frozen=True, slots=True)
class _Conditions:
    """The conditions of a group and of all groups that must contain its jobs."""

    # Key → sets of names; a job must match one name of each set.
    names: Mapping[str, Sequence[frozenset[str]]]
    none_of: frozenset[str]
    days: tuple[dt.date, dt.date]


def _conditions(group: Group, groups: Mapping[str, Group]) -> _Conditions:
    required = list(with_required(group, groups))
    found = {
        key: [
            # Slurm stores names of accounts and QOS in lower case.
            frozenset(name.lower() if key in ("accounts", "qos") else name for name in getattr(one, key))
            for one in required
            if getattr(one, key) is not None
        ]
        for key in CONDITIONS
    }
    none_of = frozenset(name for one in required for name in one.none_of)
    return _Conditions(found, none_of, group.days)


def _implies(own: _Conditions, wider: _Conditions) -> bool:
    """Return whether every job that meets a group's conditions meets those of a wider group."""
    return (
        wider.days[0] <= own.days[0]
        and own.days[1] <= wider.days[1]
        and wider.none_of <= own.none_of
        and all(
            any(_is_within(names, most) for names in own.names[key])
            for key, all_most in wider.names.items()
            for most in all_most
        )
    )


def _is_within(names: frozenset[str], most: frozenset[str]) -> bool:
    return all(name in most or (not has_wildcard(name) and is_among(name, most)) for name in names)
