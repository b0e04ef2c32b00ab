"""Derive the limits that a policy requires in Slurm, and the limits that Slurm cannot enforce (gaps).

A bound is never tighter than the rules, so Slurm never delays a job that the policy allows to run. A bound
may be looser than the rules, for example because Slurm cannot sum over several accounts.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from slurm_gpu.policy.language.account_trees import accounts_below
from slurm_gpu.policy.language.amounts import RuleLimits
from slurm_gpu.policy.language.limits import LimitKind, LimitValue, Scope, set_limits
from slurm_gpu.policy.language.membership import (
    conditions_used,
    has_wildcard,
    holds,
    is_among,
    with_required,
)
from slurm_gpu.policy.language.model import Group, Mode, Per, Policy, PolicyRule
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.native.fields import INHERITED, NOT_TRACKED, LimitScope, native_fields
from slurm_gpu.policy.native.partition_qos import GroupQos, qos_of_group
from slurm_gpu.slurm.sacctmgr import DENY_ON_LIMIT, Association, Entity, EntityKind, LimitField, Qos
from slurm_gpu.slurm.sacctmgr import Limits as FoundLimits

# Why the QOS of a partition gets no limits on single jobs.
_REPLACES = "as a limit of the partition's QOS, it would replace those of other QOS, accounts and users"
_NO_QOS = (
    "Slurm limits a partition through its QOS (QOS=NAME in its line in slurm.conf), which must be under "
    "manages: qos"
)
# Rules that sum over the jobs of several users.
_SHARED = (Per.ACCOUNT, Per.GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmdbdLimits:
    """The associations, QOS and tracked TRES of one cluster in slurmdbd."""

    cluster: str
    associations: Sequence[Association] = ()
    qos: Sequence[Qos] = ()
    tres: frozenset[str] = frozenset()
    # The QOS of each partition in slurmctld, in lower case; None if it has none.
    partition_qos: Mapping[str, str | None] = field(default_factory=dict)

    def limits(self) -> dict[Entity, FoundLimits]:
        """Return the limits of each account, QOS and user; associations by partition are left out."""
        found = {one.entity: one.limits for one in self.associations if not one.partition}
        return found | {one.entity: one.limits for one in self.qos}


@dataclass(frozen=True, slots=True)
class RuleBound:
    """The tightest value that the rules require for a limit, and the rule that requires it."""

    value: int
    rule: str


@dataclass(frozen=True, slots=True)
class UnmappedLimit:
    """A limit of a rule, or a part of a limit, that no field in Slurm can enforce."""

    rule: str
    key: str
    why: str
    # Whether nothing enforces the limit; job_submit.lua cannot refuse a job because of running jobs.
    unenforced: bool = False

    def __str__(self) -> str:
        by_whom = "nothing enforces it" if self.unenforced else "only job_submit.lua enforces it"
        return f"{self.rule}: {self.key}: {by_whom}: {self.why}"


@dataclass(frozen=True, slots=True)
class RequiredLimits:
    """The bounds that a policy requires, by entity and field, for the entities that the policy manages."""

    bounds: Mapping[Entity, Mapping[LimitField, RuleBound]] = field(default_factory=dict)
    gaps: tuple[UnmappedLimit, ...] = ()
    # The entities that may be changed.
    managed: frozenset[Entity] = frozenset()
    # Missing or conflicting settings, with remedies.
    remarks: tuple[str, ...] = ()

    def also(self, bounds: Mapping[Entity, Mapping[LimitField, RuleBound]]) -> RequiredLimits:
        """Return the limits combined with further bounds; the tighter of two bounds on a field applies."""
        both = {entity: dict(fields) for entity, fields in self.bounds.items()}
        for entity, fields in bounds.items():
            of_entity = both.setdefault(entity, {})
            for limit, bound in fields.items():
                earlier = of_entity.get(limit)
                if earlier is None or bound.value < earlier.value:
                    of_entity[limit] = bound
        return replace(self, bounds={entity: both[entity] for entity in sorted(both)})


def derive_required_limits(
    policy: Policy,
    names: ResolvedNames,
    found: SlurmdbdLimits,
    today: dt.date,
    uid_of: Callable[[str], int | None],
) -> RequiredLimits:
    """Return the limits that `policy` requires on `today`, given the contents of slurmdbd.

    `today` is the day in the site's time zone.
    """
    return _LimitDerivation(policy, names, found, today, uid_of).required()


def lua_only(policy: Policy, today: dt.date, why: str) -> tuple[UnmappedLimit, ...]:
    """Return the limits on running jobs as gaps: without Slurm's own limits, nothing enforces them."""
    return tuple(
        UnmappedLimit(rule.id, kind.key, why, unenforced=True)
        for rule in _enforced(policy, today)
        for kind, _ in set_limits(rule.limits)
        if kind.scope is Scope.RUNNING
    )


def _enforced(policy: Policy, today: dt.date) -> Iterator[PolicyRule]:
    for rule in policy.rules:
        if rule.mode is Mode.ENFORCE and policy.groups[rule.group].applies_on(today):
            yield rule


@dataclass(frozen=True, slots=True)
class _FieldLimit:
    """One limit of a rule on one field: its general value, and the values for users with exceptions."""

    rule: str
    value: int
    excepted: Mapping[str, int]


class _LimitDerivation:
    def __init__(
        self,
        policy: Policy,
        names: ResolvedNames,
        found: SlurmdbdLimits,
        today: dt.date,
        uid_of: Callable[[str], int | None],
    ) -> None:
        self.policy, self.names, self.today, self.uid_of = policy, names, today, uid_of
        self.tres = {name.lower(): name for name in found.tres}
        self.remarks: list[str] = []
        self.gaps: list[UnmappedLimit] = []
        by_partition = {(one.account, one.user) for one in found.associations if one.partition}
        associations = [one for one in found.associations if (one.account, one.user) not in by_partition]
        # The account root is the parent of all accounts.
        accounts = [one.account for one in associations if not one.user and one.account != "root"]
        self.accounts = self._managed(policy.manages.accounts, accounts, "account")
        # Users of all accounts, managed or not.
        self.users = {
            name: sorted(one.user for one in associations if one.account == name and one.user)
            for name in sorted(accounts)
        }
        parents = {one.account: one.parent for one in associations if not one.user}
        # The accounts below each managed account.
        self.below = {name: sorted(accounts_below(name, parents) - {name}) for name in self.accounts}
        self.all_qos = sorted(one.name for one in found.qos)
        self.qos = self._managed(policy.manages.qos, self.all_qos, "QOS")
        self.partition_qos = found.partition_qos
        # QOS that users may choose for their jobs.
        self.chosen_qos = {limit.item for one in associations for limit in one.limits if limit.name == "QOS"}
        for account, user in sorted(by_partition):
            if account in self.accounts:
                self.remarks.append(
                    f"{user} has associations by partition in account {account}: they are not changed"
                )
        self.field_limits: dict[Entity, dict[LimitField, list[_FieldLimit]]] = {}
        # Name of a group → the accounts that may have jobs in it.
        self.possible: dict[str, list[str]] = {}

    def required(self) -> RequiredLimits:
        for rule in _enforced(self.policy, self.today):
            self._rule(rule)
        bounds = {entity: self._bounds(entity) for entity in self.field_limits}
        bounds = {entity: fields for entity, fields in bounds.items() if fields}
        for entity, fields in bounds.items():
            if entity.kind is EntityKind.QOS:  # otherwise, jobs that can never start would wait indefinitely
                fields[LimitField("Flags", DENY_ON_LIMIT)] = RuleBound(1, next(iter(fields.values())).rule)
        managed = {Entity(EntityKind.QOS, name) for name in self.qos}
        for account in self.accounts:
            managed.add(Entity(EntityKind.ACCOUNT, account))
            managed.update(Entity(EntityKind.USER, account, user) for user in self.users[account])
        return RequiredLimits(
            {entity: bounds[entity] for entity in sorted(bounds)},
            tuple(self.gaps),
            frozenset(managed),
            tuple(self.remarks),
        )

    def _managed(self, patterns: Iterable[str], existing: Sequence[str], what: str) -> list[str]:
        chosen: set[str] = set()
        for pattern in patterns:
            # Slurm stores names of accounts and QOS in lower case.
            matching = {name for name in existing if fnmatchcase(name, pattern.lower())}
            if not matching and not any(sign in pattern for sign in "*?["):
                self.remarks.append(
                    f"{what} {pattern}, which the policy manages, is not in slurmdbd; "
                    f"`sacctmgr add {what.lower()} {pattern}` creates it"
                )
            chosen |= matching
        return sorted(chosen)

    def _rule(self, rule: PolicyRule) -> None:
        group = self.policy.groups[rule.group]
        everything = list(set_limits(rule.limits))
        by_partition = conditions_used(group, self.policy.groups) == {"partitions"}
        lua_alone = {
            kind: kind.lua_alone or (_REPLACES if by_partition and kind.scope is Scope.JOB else "")
            for kind, _ in everything
        }
        hindrance = self._hindrance(rule, group)
        if hindrance is not None:
            for kind, _ in everything:
                self._gap(rule, kind, lua_alone[kind] or hindrance)
            return
        by_qos = "qos" in conditions_used(group, self.policy.groups) or (
            self._is_everyone(group) and not self.accounts
        )
        qos: Iterable[str] | None
        if by_partition:
            own = self._own_qos_of(group)
            qos, outside = own.names, own.lacking
        else:
            qos = self._qos_of(group, self.qos) if by_qos else None
            outside = self._outside(group, by_qos=by_qos)
        for kind, value in everything:
            if lua_alone[kind]:
                self._gap(rule, kind, lua_alone[kind])
                continue
            n_gaps = len(self.gaps)
            if qos is None:
                self._on_associations(rule, group, kind, value)
            else:
                self._on_qos(rule, qos, kind, value)
            if outside is not None and len(self.gaps) == n_gaps:
                self._gap(rule, kind, outside)

    def _hindrance(self, rule: PolicyRule, group: Group) -> str | None:
        """Return the reason why Slurm can enforce no limit of a rule; None if it can enforce limits."""
        if rule.when is not None:
            return "Slurm's limits do not depend on the time of day"
        if rule.jobs is not None:
            return "Slurm's limits do not depend on the job's size"
        if rule.kind is not None:
            return "Slurm's limits do not distinguish interactive jobs"
        used = conditions_used(group, self.policy.groups)
        if used == {"partitions"}:
            if not self.policy.manages.qos:
                return _NO_QOS
            own = self._own_qos_of(group)
            return None if own.names else own.lacking
        if "partitions" in used:
            return "Slurm limits a partition through its QOS, which is the same for all accounts and users"
        if "qos" in used and len(used) > 1:
            return "Slurm limits a QOS or an association, not the jobs that are in both"
        if "qos" in used:
            if not self._qos_of(group, self.qos):
                missing = self._qos_of(group, self._named(group, "qos")) or ["of this group"]
                return f"QOS {', '.join(missing)} must be in slurmdbd and under manages: qos"
        elif not self._accounts_of(group) and not (self._is_everyone(group) and self.qos):
            named = sorted(self._named(group, "accounts"))
            if not named:
                return "no account is both in slurmdbd and under manages: accounts"
            return f"account {', '.join(named)} must be in slurmdbd and under manages: accounts"
        return None

    def _holds(
        self,
        group: Group,
        account: str | None = None,
        user: str | None = None,
        qos: str | None = None,
        partition: str | None = None,
    ) -> bool | None:
        """Return whether jobs with these names are in a group; None if this depends on another name."""
        own: list[bool | None] = []
        if group.partitions is not None:
            own.append(None if partition is None else is_among(partition, group.partitions))
        for names, name in ((group.users, user), (group.accounts, account), (group.qos, qos)):
            if names is not None:
                own.append(None if name is None else is_among(name.lower(), _in_lower_case(names)))
        if group.unix_groups is not None:
            uid = None if user is None else self.uid_of(user)
            members = [self.names.members[name] for name in group.unix_groups]
            own.append(None if user is None else any(uid in one for one in members))
        all_of, none_of = (
            [self._holds(self.policy.groups[name], account, user, qos, partition) for name in names]
            for names in (group.all_of, group.none_of)
        )
        return holds(own, all_of, none_of)

    def _is_everyone(self, group: Group) -> bool:
        return not conditions_used(group, self.policy.groups) and self._holds(group) is True

    def _own_qos_of(self, group: Group) -> GroupQos:
        partitions = [name for name in self.partition_qos if self._holds(group, partition=name)]
        return qos_of_group(partitions, self.partition_qos, self.qos, self.chosen_qos)

    def _named(self, group: Group, key: str) -> set[str]:
        """Return the lower-case names without wildcards that a group or one of its `in:` groups lists."""
        listed = (getattr(one, key) for one in with_required(group, self.policy.groups))
        return {name.lower() for names in listed if names for name in names if not has_wildcard(name)}

    def _outside(self, group: Group, *, by_qos: bool) -> str | None:
        """Return a message if some jobs of the rule are not in managed accounts or QOS; None otherwise."""
        if by_qos:
            what, managed = "QOS", self.qos
            wanted = self._qos_of(group, {*self.all_qos, *self._named(group, "qos")})
        else:
            what, managed = "account", self.accounts
            named = self._named(group, "accounts")
            wanted = [name for name in named - {*self.users} if self._holds(group, name) is not False]
            wanted += [
                name for name in self._possible(group) if name in named or any(self._users_of(group, name))
            ]
        missing = sorted(set(wanted) - set(managed))
        if not missing:
            return None
        key = "qos" if by_qos else "accounts"
        outside = f"{what} {', '.join(missing)}"
        return f"Slurm cannot limit {outside}, which must be in slurmdbd and under manages: {key}"

    def _accounts_of(self, group: Group) -> list[str]:
        return [account for account in self._possible(group) if account in self.below]

    def _possible(self, group: Group) -> list[str]:
        """Return all accounts, managed or not, that may have jobs in the group."""
        if group.name not in self.possible:
            accounts: Iterable[str] = self.users
            if group.accounts is not None and not any(map(has_wildcard, group.accounts)):
                # Do not compare each of hundreds of groups with each of hundreds of accounts.
                accounts = sorted(self.users.keys() & _in_lower_case(group.accounts))
            self.possible[group.name] = [name for name in accounts if self._holds(group, name) is not False]
        return self.possible[group.name]

    def _qos_of(self, group: Group, names: Iterable[str]) -> list[str]:
        return [name for name in sorted(names) if self._holds(group, qos=name)]

    def _on_qos(self, rule: PolicyRule, qos: Iterable[str], kind: LimitKind, value: LimitValue) -> None:
        field_limits = self._fields(rule, kind, value, LimitScope.QOS)
        for name in qos:
            for limit, field_limit in field_limits.items():
                self._add_limit(Entity(EntityKind.QOS, name), limit, field_limit)

    def _on_associations(self, rule: PolicyRule, group: Group, kind: LimitKind, value: LimitValue) -> None:
        chosen = not conditions_used(group, self.policy.groups) <= {"accounts"}
        if rule.per in _SHARED and chosen:
            self._gap(rule, kind, "Slurm cannot sum over some users of an account")
            return
        field_limits = self._fields(rule, kind, value, LimitScope.ASSOCIATIONS)
        for account in self._accounts_of(group):
            if rule.per in _SHARED:
                if others := self._also_counted(rule, group, account):
                    parts = ", ".join(others)
                    self._gap(rule, kind, f"in account {account}, Slurm would also count sub-account {parts}")
                    continue
                for limit, field_limit in field_limits.items():
                    self._add_limit(Entity(EntityKind.ACCOUNT, account), limit, field_limit)
                continue
            # Sub-accounts would inherit the limits of an account, even if the rule does not apply to them.
            hands_on = not chosen and not self.below[account]
            for limit, field_limit in field_limits.items():
                if hands_on and limit.name in INHERITED:
                    self._add_limit(Entity(EntityKind.ACCOUNT, account), limit, field_limit)
                for user in self._users_of(group, account):
                    self._add_limit(Entity(EntityKind.USER, account, user), limit, field_limit)

    def _also_counted(self, rule: PolicyRule, group: Group, account: str) -> list[str]:
        """Return the sub-accounts whose jobs Slurm would count for the account although the rule does not."""
        below = self.below[account]
        if rule.per is Per.ACCOUNT:
            return below
        return [name for name in below if self._holds(group, name) is not True]

    def _users_of(self, group: Group, account: str) -> Iterator[str]:
        for user in self.users[account]:
            if self._holds(group, account, user):
                yield user

    def _fields(
        self, rule: PolicyRule, kind: LimitKind, value: LimitValue, place: LimitScope
    ) -> dict[LimitField, _FieldLimit]:
        wanted = native_fields(kind, value, rule.per, place)
        if not wanted:
            self._gap(
                rule, kind, "the rule does not limit jobs with few GPUs, but Slurm's limits apply to all jobs"
            )
        field_limits = {}
        for limit, amount in wanted.items():
            if limit.item and limit.item.lower() not in self.tres:
                self._gap(rule, kind, NOT_TRACKED.format(tres=limit.item))
                continue
            excepted = {
                user: own[limit]
                for user, limits in self._exceptions(rule)
                if (own := self._own(kind, limits, rule.per, place)) is not None and limit in own
            }
            field_limits[LimitField(limit.name, self.tres.get(limit.item.lower(), ""))] = _FieldLimit(
                rule.id, amount, excepted
            )
        return field_limits

    def _exceptions(self, rule: PolicyRule) -> Iterator[tuple[str, RuleLimits]]:
        for exception in self.policy.exceptions:
            if exception.rule == rule.whole.id and exception.applies_on(self.today) and exception.user:
                yield exception.user, exception.limits

    @staticmethod
    def _own(
        kind: LimitKind, limits: RuleLimits, per: Per, place: LimitScope
    ) -> dict[LimitField, int] | None:
        value = kind.of(limits)
        return None if value is None else native_fields(kind, value, per, place)

    def _add_limit(self, entity: Entity, limit: LimitField, field_limit: _FieldLimit) -> None:
        self.field_limits.setdefault(entity, {}).setdefault(limit, []).append(field_limit)

    def _bounds(self, entity: Entity) -> dict[LimitField, RuleBound]:
        bounds = {}
        for limit, field_limits in self.field_limits[entity].items():
            bound = self._tightest(entity, field_limits)
            if entity.kind is EntityKind.USER and limit.name in INHERITED:
                account = self.field_limits.get(Entity(EntityKind.ACCOUNT, entity.name), {}).get(limit)
                if account is not None:
                    above = self._tightest(Entity(EntityKind.ACCOUNT, entity.name), account)
                    if above.value == bound.value:
                        continue  # the user inherits the limit of the account
            bounds[limit] = bound
        return bounds

    @staticmethod
    def _tightest(entity: Entity, field_limits: Sequence[_FieldLimit]) -> RuleBound:
        bounds = []
        for field_limit in field_limits:
            value = field_limit.value
            if entity.kind is EntityKind.USER:
                value = field_limit.excepted.get(entity.user, value)
            elif entity.kind is EntityKind.QOS:  # a QOS has one value for all its users
                value = max([value, *field_limit.excepted.values()])
            bounds.append(RuleBound(value, field_limit.rule))
        return min(bounds, key=lambda bound: bound.value)

    def _gap(self, rule: PolicyRule, kind: LimitKind, why: str) -> None:
        gap = UnmappedLimit(rule.id, kind.key, why, unenforced=kind.scope is Scope.RUNNING)
        if gap not in self.gaps:
            self.gaps.append(gap)


@functools.lru_cache(maxsize=1024)
def _in_lower_case(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(str.lower, names))
