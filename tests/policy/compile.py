"""Compile policies of the model with the product's own policy classes and `compile_policy`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_gpu.policy.language.amounts import GpuLimit, JobAmounts, LimitStep, RuleLimits
from slurm_gpu.policy.language.job_changes import DefaultOptions, OverLimitOptions, SetOptions
from slurm_gpu.policy.language.job_conditions import JobConditions, JobSize
from slurm_gpu.policy.language.limits import AT_LEAST, LIMITS, LimitUnit, Scope
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import (
    Bundle,
    BundleMode,
    Group,
    Hours,
    JobKind,
    JobTime,
    Mode,
    Need,
    OnError,
    Per,
    Policy,
    PolicyRule,
    RuleException,
    Tier,
)
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.language.tiers import expanded
from slurm_gpu.policy.lua.bundle import NodeResources, SiteFacts, compile_policy

from .model import (
    DEFAULT_MIB_PER_CPU,
    DEFAULT_MIB_PER_GPU,
    PARTITIONS,
    SHARDS_PER_GPU,
    BundleModel,
    ExceptionModel,
    GroupModel,
    JobsModel,
    Limit,
    PolicyModel,
    RuleModel,
    TierModel,
    When,
)
from .users import MEMBERS, NAMES, UIDS


def compiled(
    rules: Sequence[RuleModel],
    log: str,
    bundles: Iterable[BundleModel] = (),
    zone: str = "UTC",
    **more: Plain,
) -> dict[str, Plain]:
    """Return the table from which the bundle is built, one group per rule; `more` replaces its entries."""
    wholes = {whole.id: whole for rule in rules for whole in [rule.whole or rule]}.values()
    policy = Policy(
        contact="gpu-help",
        bundles={bundle.name: _bundle(bundle) for bundle in bundles},
        groups={group.name: group for rule in wholes for group in _groups_of(rule)},
        rules=tuple(map(_rule, wholes)),
        exceptions=tuple(exception for rule in wholes for exception in _exceptions(rule)),
    )
    facts = SiteFacts(
        slurm_user_uid=64030,
        shards_per_gpu=SHARDS_PER_GPU,
        partition_cpus={name: part.cpus for name, part in PARTITIONS.items()},
        partition_nodes={
            name: {NodeResources(part.gpus, part.cpus, part.cpus, 2, part.mib): 1000}
            for name, part in PARTITIONS.items()
        },
        partition_mib={name: part.mib for name, part in PARTITIONS.items()},
        partition_gpu_types={name: part.gpu_types for name, part in PARTITIONS.items()},
        default_mib={"per_gpu": DEFAULT_MIB_PER_GPU, "per_cpu": DEFAULT_MIB_PER_CPU},
        timezone=zone,
        year=2026,
    )
    table = compile_policy(expanded(policy), ResolvedNames(dict(UIDS), dict(MEMBERS)), facts)
    where: dict[str, Plain] = {"decisions_log": log, "decisions_log_bytes": 2**20, "snapshot": None}
    return {**table, "groups_id": "test", **where, **more}


def lending(policy: PolicyModel) -> dict[str, Plain] | None:
    """Return the table for `owners:`, or None if the policy has no owners."""
    if not policy.owners:
        return None
    owners: list[Plain] = [
        {
            "name": owner.account,
            "accounts": {owner.account: True},
            "mgpu": owner.mgpu,
            "qos": owner.qos,
            "lend_in": "sg-loans",
            "return_within_s": 600,
        }
        for owner in policy.owners
    ]
    return {"owners": owners, "unowned_mgpu": policy.unowned_mgpu, "requeues": True}


def _groups(name: str, model: RuleModel | GroupModel) -> Iterator[Group]:
    """Yield the groups that define a group, and then the group itself."""
    names = {}
    for key in ("all_of", "none_of"):
        others = {f"{name}.{key}{number}": one for number, one in enumerate(getattr(model, key))}
        names[key] = tuple(others)
        for other, one in others.items():
            yield from _groups(other, one)
    yield Group(
        name,
        users=None if model.users is None else tuple(sorted(NAMES[uid] for uid in model.users)),
        unix_groups=None if model.unix_group is None else (model.unix_group,),
        accounts=_names(model.accounts),
        qos=_names(model.qos),
        partitions=_names(model.partitions),
        all_of=names["all_of"],
        none_of=names["none_of"],
        from_day=model.from_day if isinstance(model, RuleModel) else None,
        until=model.until if isinstance(model, RuleModel) else None,
    )


def _groups_of(rule: RuleModel) -> Iterator[Group]:
    """Yield the groups of a rule and of its tiers."""
    yield from _groups(f"group-{rule.id}", rule)
    for number, tier in enumerate(rule.tiers):
        name = rule.group_of(number)
        if tier.group is not None and name is not None:
            *others, group = _groups(name, tier.group)
            yield from others
            dated = not rule.are_exceptions
            yield dataclasses.replace(group, from_day=tier.from_day, until=tier.until) if dated else group


def _exceptions(rule: RuleModel) -> Iterator[RuleException]:
    def exception(
        own: ExceptionModel | TierModel, user: str | None, group: str | None = None
    ) -> RuleException:
        return RuleException(
            rule.id,
            user,
            as_limits(own.limits),
            as_minimums(own.limits),
            why="A deadline.",
            from_day=own.from_day,
            until=own.until,
            group=group,
        )

    for uid, own in rule.exceptions.items():
        yield exception(own, NAMES[uid])
    for number, tier in enumerate(rule.tiers if rule.are_exceptions else ()):
        if (group := rule.group_of(number)) is not None:
            yield exception(tier, None, group)


def _rule(rule: RuleModel) -> PolicyRule:
    tiers = [
        Tier(
            rule.group_of(number),
            as_limits(tier.limits),
            as_minimums(tier.limits),
            options=_options(tier.options),
        )
        for number, tier in enumerate(rule.tiers)
    ]
    return PolicyRule(
        id=rule.id,
        group=f"group-{rule.id}",
        per=Per(rule.per),
        why=f"Reason of {rule.id}.",
        limits=as_limits(rule.limits),
        at_least=as_minimums(rule.limits),
        options=_options(rule.options),
        set=_set(rule),
        defaults=_defaults(rule),
        over_limit=OverLimitOptions(**rule.over_limit) if rule.over_limit else None,
        tiers=() if rule.are_exceptions else tuple(tiers),
        mode=Mode(rule.mode),
        on_error=OnError(rule.on_error),
        when=None if rule.when is None else _hours(rule.when),
        hard=rule.hard,
        carry_over=rule.carry_over,
        jobs=None if rule.jobs is None else _jobs(rule.jobs),
        kind=None if rule.kind is None else JobKind(rule.kind),
    )


def _options(options: Mapping[str, str]) -> dict[str, Need]:
    return {option: Need(need) for option, need in options.items()}


def _set(rule: RuleModel) -> SetOptions | None:
    given: Mapping[str, Any] = {} if rule.changes is None else rule.changes.always
    return SetOptions(**given) if given else None


def _defaults(rule: RuleModel) -> DefaultOptions | None:
    given: Mapping[str, Any] = {} if rule.changes is None else rule.changes.by_default
    return (
        DefaultOptions(**{"walltime_s" if key == "walltime" else key: given[key] for key in given})
        if given
        else None
    )


def _jobs(jobs: JobsModel) -> JobConditions:
    at_least, at_most = (
        JobSize(*(None if key not in one else int(one[key]) for key in ("gpus", "nodes", "walltime")))
        for one in (jobs.at_least, jobs.at_most)
    )
    return JobConditions(at_least, at_most, _names(jobs.gpu_types), jobs.array, _names(jobs.names))


def _hours(when: When) -> Hours:
    to_min = when.to_min if when.to_min > when.from_min else when.to_min + 1440
    return Hours(when.days, (when.from_min, to_min), JobTime.RUN if when.run else JobTime.SUBMISSION)


def _bundle(bundle: BundleModel) -> Bundle:
    return Bundle(
        name=bundle.name,
        mgpu=bundle.mgpu,
        cpus=bundle.cpus,
        memory_mib=bundle.mib,
        partitions=_names(bundle.partitions),
        gpu_types=_names(bundle.gpu_types),
        mode=BundleMode(bundle.mode),
        why=f"Reason of {bundle.name}.",
    )


def as_limits(flat: Mapping[str, Limit]) -> RuleLimits:
    """Convert limits with the model's keys ("gpus:a100") to those of the product."""
    limits = RuleLimits()
    for key, value in flat.items():
        base, _, part = key.partition(":")
        if base == "at_least":
            continue
        kind = LIMITS[base]
        before = kind.of(limits)
        own: Any = value
        if kind.measure is LimitUnit.GPUS:
            assert isinstance(value, int | float)
            both, mgpu = before if isinstance(before, GpuLimit) else GpuLimit(), int(value)
            types = dict(both.by_type_mgpu) | ({part: mgpu} if part else {})
            own = GpuLimit(both.all_mgpu if part else mgpu, types)
        elif kind.measure is LimitUnit.HOURS:
            own = {
                **(before if isinstance(before, Mapping) else {}),
                part or None: value,
            }
        elif isinstance(value, frozenset):
            own = _names(value)
        elif kind.scope is Scope.JOB:
            steps = value if isinstance(value, tuple) else ((0, value),)
            own = tuple(LimitStep(mgpu, int(number)) for mgpu, number in steps)
        limits = dataclasses.replace(limits, **{kind.field: own})
    return limits


def as_minimums(flat: Mapping[str, Limit]) -> JobAmounts:
    """Convert the minimums of the model ("at_least:gpus") to those of the product."""
    flat = {key.removeprefix(AT_LEAST): value for key, value in flat.items() if key.startswith(AT_LEAST)}
    limits = as_limits(flat)
    return JobAmounts(**{one.name: getattr(limits, one.name) for one in dataclasses.fields(JobAmounts)})


def _names(names: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(names))
