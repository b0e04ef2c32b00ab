"""Derive Slurm's own settings for `owners:`, whose GPUs are idle, on loan, or used by the owner.

slurmctld sums up the GPUs of running jobs in a QOS when it starts a job. The QOS of each owner is limited to
the owner's GPUs, and each ordinary QOS to the GPUs without an owner. Owner and ordinary QOS preempt the QOS
of loans, which has no limit on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from slurm_gpu.policy.language.model import GpuOwner, Policy
from slurm_gpu.policy.native.fields import NOT_TRACKED
from slurm_gpu.policy.native.required import RuleBound, SlurmdbdLimits
from slurm_gpu.slurm.sacctmgr import DENY_ON_LIMIT, NEW_QOS, Entity, EntityKind, LimitField, Qos

_GPUS = LimitField("GrpTRES", "gres/gpu")
_DENY = LimitField("Flags", DENY_ON_LIMIT)


@dataclass(frozen=True, slots=True)
class NewQos:
    """A QOS to create."""

    name: str
    description: str
    # Whether the QOS is for loans, whose jobs are requeued when the owner needs its GPUs.
    lends: bool

    def __str__(self) -> str:
        return f"QOS {self.name}: to be created ({self.description})"


@dataclass(frozen=True, slots=True)
class Lending:
    """The bounds that lending requires, by entity and field, and the QOS to create for them."""

    bounds: Mapping[Entity, Mapping[LimitField, RuleBound]] = field(default_factory=dict)
    new_qos: tuple[NewQos, ...] = ()
    remarks: tuple[str, ...] = ()

    def fresh(self) -> tuple[Qos, ...]:
        """Return the new QOS with the values that they have after their creation."""
        return tuple(Qos(name=one.name, limits=NEW_QOS) for one in self.new_qos)


def derive_lending(policy: Policy, found: SlurmdbdLimits, n_gpus: int) -> Lending:
    """Return the bounds and QOS that lending requires, given slurmdbd's contents and the cluster's GPUs."""
    return _LendingWish(policy, found, n_gpus).lending() if policy.owners else Lending()


def unowned_gpus(owners: Iterable[GpuOwner], n_gpus: int) -> int:
    """Return the number of GPUs without an owner."""
    return max(0, n_gpus - sum(owner.gpus for owner in owners))


class _LendingWish:
    def __init__(self, policy: Policy, found: SlurmdbdLimits, n_gpus: int) -> None:
        self.policy, self.owners, self.n_gpus = policy, policy.owners, n_gpus
        self.found = {one.name: one for one in found.qos}
        self.counts_gpus = "gres/gpu" in found.tres
        self.loans = tuple(dict.fromkeys(owner.lend_in for owner in self.owners))
        self.own = {owner.qos: owner for owner in self.owners}
        self.accounts = {
            one.account: one for one in found.associations if not one.user and one.account != "root"
        }
        self.users = [one for one in found.associations if one.user and not one.partition]
        self.bounds: dict[Entity, dict[LimitField, RuleBound]] = {}

    def lending(self) -> Lending:
        for name in self.loans:
            lender = next(owner for owner in self.owners if owner.lend_in == name)
            # A grace time begins with a signal. A job that exits on that signal fails and is not requeued.
            self._add_bound(Entity(EntityKind.QOS, name), LimitField("GraceTime"), 0, _rule(lender))
        for owner in self.owners:
            self._capped(owner.qos, owner.gpus, _rule(owner))
        ordinary = [name for name in self._ordinary() if _matches(name, self.policy.manages.qos)]
        for name in ordinary:
            self._capped(name, unowned_gpus(self.owners, self.n_gpus), "owners")
        for account in self._managed_accounts():
            self._access(account)
        return Lending(self.bounds, tuple(self._new()), tuple(self._remarks(ordinary)))

    def _ordinary(self) -> list[str]:
        return sorted(set(self.found) - set(self.loans) - set(self.own))

    def _managed_accounts(self) -> list[str]:
        return sorted(name for name in self.accounts if _matches(name, self.policy.manages.accounts))

    def _capped(self, name: str, gpus: int, rule: str) -> None:
        entity = Entity(EntityKind.QOS, name)
        if self.counts_gpus:
            self._add_bound(entity, _GPUS, gpus, rule)
            self._add_bound(entity, _DENY, 1, rule)
        for loans in self.loans:
            self._add_bound(entity, LimitField("Preempt", loans), 1, rule)

    def _access(self, account: str) -> None:
        entities = [Entity(EntityKind.ACCOUNT, account)]
        # A user with their own list of QOS does not inherit the list of the account.
        entities += [
            one.entity
            for one in self.users
            if one.account == account and any(limit.name == "QOS" for limit in one.limits)
        ]
        for entity in entities:
            for owner in self.owners:
                self._add_bound(entity, LimitField("QOS", owner.lend_in), 1, _rule(owner))
                if account in owner.accounts:
                    self._add_bound(entity, LimitField("QOS", owner.qos), 1, _rule(owner))

    def _add_bound(self, entity: Entity, limit: LimitField, value: int, rule: str) -> None:
        self.bounds.setdefault(entity, {})[limit] = RuleBound(value, rule)

    def _new(self) -> Iterator[NewQos]:
        for name in self.loans:
            if name not in self.found:
                lenders = [owner.group for owner in self.owners if owner.lend_in == name]
                yield NewQos(name, f"idle GPUs of {', '.join(lenders)}", lends=True)
        for name, owner in self.own.items():
            if name not in self.found:
                yield NewQos(name, f"GPUs of {owner.group}", lends=False)

    def _remarks(self, ordinary: list[str]) -> Iterator[str]:
        owned = sum(owner.gpus for owner in self.owners)
        if owned > self.n_gpus:
            yield f"owners own {owned} GPUs, but the cluster has only {self.n_gpus}"
        if not self.counts_gpus:
            yield f"other jobs can use owners' GPUs: {NOT_TRACKED.format(tres='gres/gpu')}"
        left = [name for name in self._ordinary() if name not in ordinary]
        if left:
            yield (
                f"jobs in unmanaged QOS {', '.join(left)} may use GPUs of owners and do not preempt loans "
                "(see manages: qos)"
            )
        if len(ordinary) > 1:
            yield (
                f"ordinary jobs run in QOS {', '.join(ordinary)}: each QOS may use all GPUs without an "
                "owner, so together they may also use GPUs of owners"
            )
        for name in self.loans:
            mode = self.found[name].preempt_mode if name in self.found else "requeue"
            if mode not in ("requeue", "cluster"):
                yield (
                    f"QOS {name} has PreemptMode={mode}, so loans are not requeued; run "
                    f"`sacctmgr modify qos {name} set PreemptMode=requeue`"
                )
        managed = set(self._managed_accounts())
        for owner in self.owners:
            for account in owner.accounts:
                if account not in managed:
                    yield (
                        f"account {account} of owner {owner.group} is not managed (manages: accounts) or not "
                        f"in slurmdbd, so its jobs may use QOS {owner.qos} only if you allow it by hand"
                    )
        outside = sorted(
            set(self.accounts) - managed - {name for one in self.owners for name in one.accounts}
        )
        if outside:
            yield (
                f"users of unmanaged account {', '.join(outside)} cannot borrow until you allow it by hand "
                "(see manages: accounts)"
            )


def _rule(owner: GpuOwner) -> str:
    return f"owners.{owner.group}"


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)
