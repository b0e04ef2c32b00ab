"""Derive Slurm's own settings for `urgent:`: the urgent QOS, the QOS that it preempts, and its accounts.

An ordinary rule limits how many urgent jobs run at once (GrpJobs of the QOS). slurmctld checks this limit
when it starts a job. job_submit.lua decides which users of an account may submit urgent jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from slurm_gpu.policy.language.membership import is_among
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.native.lending import NewQos
from slurm_gpu.policy.native.preemption import Lack, preemption_lacks
from slurm_gpu.policy.native.required import RuleBound, SlurmdbdLimits
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.slurm.sacctmgr import NEW_QOS, Entity, EntityKind, LimitField, Qos

_RULE = "urgent"


@dataclass(frozen=True, slots=True)
class UrgentWish:
    """The bounds that urgent jobs require, by entity and field, and the urgent QOS if it does not exist."""

    bounds: Mapping[Entity, Mapping[LimitField, RuleBound]] = field(default_factory=dict)
    new_qos: tuple[NewQos, ...] = ()
    remarks: tuple[str, ...] = ()

    def fresh(self) -> tuple[Qos, ...]:
        """Return each new QOS with the values that it has after its creation."""
        return tuple(Qos(name=one.name, limits=NEW_QOS) for one in self.new_qos)


def derive_urgent(policy: Policy, found: SlurmdbdLimits) -> UrgentWish:
    """Return the bounds and the QOS that urgent jobs require, given the contents of slurmdbd."""
    urgent = policy.urgent
    if urgent is None:
        return UrgentWish()
    known = {one.name for one in found.qos}
    wanted = RuleBound(1, _RULE)
    bounds: dict[Entity, dict[LimitField, RuleBound]] = {}
    missing = [name for name in urgent.preempts if name not in known]
    preempted = {LimitField("Preempt", name): wanted for name in urgent.preempts if name in known}
    if preempted:
        bounds[Entity(EntityKind.QOS, urgent.qos)] = preempted
    accounts = {one.account for one in found.associations if not one.user and one.account != "root"}
    named = _accounts(policy)
    chosen = {name for name in accounts if named is None or is_among(name, named)}
    managed = {
        name
        for name in chosen
        if any(fnmatchcase(name, pattern.lower()) for pattern in policy.manages.accounts)
    }
    access = LimitField("QOS", urgent.qos)
    for account in sorted(managed):
        bounds[Entity(EntityKind.ACCOUNT, account)] = {access: wanted}
    for one in found.associations:
        # A user with their own list of QOS does not inherit the list of the account.
        own = one.user and not one.partition and any(limit.name == "QOS" for limit in one.limits)
        if own and one.account in managed:
            bounds[one.entity] = {access: wanted}
    new = () if urgent.qos in known else (NewQos(urgent.qos, "urgent jobs", lends=False),)
    return UrgentWish(bounds, new, tuple(_remarks(urgent.qos, missing, sorted(chosen - managed))))


def lacks(settings: SlurmSettings, policy: Policy) -> Iterator[Lack]:
    """Yield the settings that slurm.conf lacks for urgent jobs, if the policy has `urgent:`."""
    if policy.urgent is None:
        return
    raw = settings.raw
    if policy.urgent.preempts:
        yield from preemption_lacks(settings, "urgent jobs cannot preempt others")
    if raw.get("PriorityType", "") != "priority/multifactor":
        yield Lack(
            "slurm.conf lacks PriorityType=priority/multifactor: urgent jobs do not start before others",
            "set PriorityType=priority/multifactor in slurm.conf; restart slurmctld",
        )
    enforced = set(raw.get("AccountingStorageEnforce", "").lower().split(","))
    if "all" not in enforced and ("qos" not in enforced or enforced.isdisjoint({"limits", "safe"})):
        yield Lack(
            "slurm.conf lacks AccountingStorageEnforce=…,limits,qos: any number of urgent jobs can run",
            "set AccountingStorageEnforce=associations,limits,qos in slurm.conf; restart slurmctld",
        )


def _accounts(policy: Policy) -> frozenset[str] | None:
    """Return the accounts that the groups name; None if a group includes users of any account."""
    assert policy.urgent is not None
    named: set[str] = set()
    for name in policy.urgent.groups:
        accounts = policy.groups[name].accounts
        if accounts is None:
            return None
        named |= {account.lower() for account in accounts}
    return frozenset(named)


def _remarks(qos: str, missing: list[str], outside: list[str]) -> Iterator[str]:
    if missing:
        yield f"urgent jobs cannot preempt QOS {', '.join(missing)}, which is not in slurmdbd"
    if outside:
        yield (
            f"users of unmanaged account {', '.join(outside)} cannot use QOS {qos} until you allow it by "
            "hand (see manages: accounts)"
        )
