"""Find limits on running jobs that cannot be enforced, regardless of the contents of slurmdbd.

job_submit.lua cannot refuse a submission because of a limit on running jobs, since the job may wait. Only
Slurm's own limits can enforce it. `policy plan` reports the names that are missing in an existing slurmdbd.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace

from slurm_gpu.policy.language.account_trees import with_listed
from slurm_gpu.policy.language.amounts import GpuLimit
from slurm_gpu.policy.language.limits import LimitKind, LimitValue, Scope, set_limits
from slurm_gpu.policy.language.membership import example_of
from slurm_gpu.policy.language.model import Mode, Policy, PolicyRule
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.native.required import (
    SlurmdbdLimits,
    UnmappedLimit,
    derive_required_limits,
    lua_only,
)
from slurm_gpu.slurm.sacctmgr import Association, Qos

# A partition that no group names; no partition in slurm.conf can have this name.
_OTHER_PARTITION = "any other"


def unenforced_limits(
    policy: Policy, names: ResolvedNames, today: dt.date
) -> Iterator[tuple[PolicyRule, str, str]]:
    """Yield the rule, the key and the reason of each limit that cannot be enforced even when it applies."""
    policy = with_listed(policy, names)
    groups = {name: replace(group, from_day=None) for name, group in policy.groups.items()}
    policy = replace(policy, groups=groups)
    for rule in policy.rules:
        if rule.mode is not Mode.ENFORCE:
            for kind, _ in _running(rule):
                yield (
                    rule,
                    kind.key,
                    "Slurm's own limits cannot observe or advise; move it to a rule with mode: enforce",
                )
    rules = {rule.id: rule for rule in policy.rules}
    if policy.manages.qos or policy.manages.accounts:
        gaps = _gaps_at_best(policy, names, today)
    else:
        gaps = lua_only(policy, today, "Slurm's own limits are set only for names under manages:")
    yield from ((rules[gap.rule], gap.key, gap.why) for gap in gaps if gap.unenforced)


def _gaps_at_best(policy: Policy, names: ResolvedNames, today: dt.date) -> tuple[UnmappedLimit, ...]:
    """Return the gaps with an ideal slurmdbd and slurm.conf, where each partition has its own managed QOS."""
    found = _best_accounting(policy)
    patterns = {name for group in policy.groups.values() for name in group.partitions or ()}
    qos_of = {name: f"partition {name}" for name in {*map(example_of, patterns), _OTHER_PARTITION}}
    if policy.manages.qos:
        policy = replace(policy, manages=replace(policy.manages, qos=(*policy.manages.qos, *qos_of.values())))
    own = [Qos(name=name) for name in qos_of.values()]
    found = replace(found, qos=(*found.qos, *own), partition_qos=qos_of)
    return derive_required_limits(policy, names, found, today, lambda user: None).gaps


def _best_accounting(policy: Policy) -> SlurmdbdLimits:
    """Return the contents of a slurmdbd with every name in the policy and one name for each pattern."""
    groups = policy.groups.values()
    accounts = {*policy.manages.accounts, *(name for group in groups for name in group.accounts or ())}
    qos = {*policy.manages.qos, *(name for group in groups for name in group.qos or ())}
    types = {
        f"gres/gpu:{gpu_type}"
        for rule in policy.rules
        for _, value in _running(rule)
        if isinstance(value, GpuLimit)
        for gpu_type in value.by_type_mgpu
    }
    return SlurmdbdLimits(
        cluster="",
        associations=[Association(account=name) for name in sorted({*map(_example, accounts)})],
        qos=[Qos(name=name) for name in sorted({*map(_example, qos)})],
        tres=frozenset({"cpu", "mem", "node", "gres/gpu"} | types),
    )


def _example(pattern: str) -> str:
    return example_of(pattern.lower())


def _running(rule: PolicyRule) -> Iterator[tuple[LimitKind, LimitValue]]:
    return ((kind, value) for kind, value in set_limits(rule.limits) if kind.scope is Scope.RUNNING)
