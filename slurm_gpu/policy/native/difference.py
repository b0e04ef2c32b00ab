"""Compare Slurm's own limits with those of a policy, and find the required changes (pure functions).

A policy owns only the limits that it set (`Owned`). Limits that were set by hand and that no rule names are
not changed. If no rule names an owned limit any more, or its account is no longer managed, the limit gets the
value that it had before the policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from slurm_gpu.policy.native.fields import INHERITED
from slurm_gpu.policy.native.required import RequiredLimits
from slurm_gpu.slurm.sacctmgr import Association, Entity, EntityKind, LimitField, Limits


@dataclass(frozen=True, slots=True)
class Owned:
    """A limit that the policy set."""

    entity: Entity
    limit: LimitField
    value: int
    # The value of the limit before the policy first changed it.
    before: int | None
    rule: str


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The change of one limit; None means no limit."""

    entity: Entity
    limit: LimitField
    old: int | None
    new: int | None
    # The rule that requires the change; "" if no rule requires it any more.
    rule: str = ""
    # Whether this step undoes another step, regardless of the rules.
    undoes: bool = False

    def __str__(self) -> str:
        why = f"rule {self.rule}" if self.rule else "no rule requires it any more"
        if self.undoes:
            why = "as before the apply"
        if self.limit.is_list_item:
            return f"{self.entity}: {self.limit.show(self.new)} ({why})"
        was = "no limit" if self.old is None else self.limit.amount(self.old)
        return f"{self.entity}: {self.limit.show(self.new)} (was {was}; {why})"

    @property
    def back(self) -> LimitChange:
        """Return the step that undoes this step."""
        return LimitChange(self.entity, self.limit, self.new, self.old, undoes=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes, the limits that the policy owns afterwards, and remarks."""

    steps: tuple[LimitChange, ...] = ()
    owned: tuple[Owned, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """A limit that was changed by hand after the policy set it."""

    owned: Owned
    found: int | None

    def __str__(self) -> str:
        one = self.owned
        is_now = "removed" if self.found is None else f"set to {one.limit.amount(self.found)}"
        if one.limit.is_list_item:
            return f"{one.entity}: {one.limit.name} {one.limit.item} (rule {one.rule}) was removed by hand"
        return f"{one.entity}: {one.limit.show(one.value)} (rule {one.rule}) was {is_now} by hand"


def difference(wanted: RequiredLimits, found: Mapping[Entity, Limits], owned: Iterable[Owned]) -> Difference:
    """Return the changes that turn the limits in slurmdbd into the required limits."""
    own = {(one.entity, one.limit): one for one in owned}
    steps: list[LimitChange] = []
    kept: list[Owned] = []
    remarks = list(_overridden(wanted, found))
    for entity, bounds in wanted.bounds.items():
        for limit, bound in sorted(bounds.items()):
            old = found[entity].get(limit)
            if old != bound.value:
                steps.append(LimitChange(entity, limit, old, bound.value, bound.rule))
            earlier = own.pop((entity, limit), None)
            before = old if earlier is None else earlier.before
            kept.append(Owned(entity, limit, bound.value, before, bound.rule))
    for (entity, limit), one in sorted(own.items()):
        if entity not in found:
            continue  # the entity was deleted with its limits
        value = found[entity].get(limit)
        if value != one.value:
            remarks.append(f"{Drift(one, value)}; no rule requires it any more, so it is left unchanged")
        elif value != one.before:
            steps.append(LimitChange(entity, limit, value, one.before))
    return Difference(tuple(steps), tuple(kept), tuple(remarks))


def drift(found: Mapping[Entity, Limits], owned: Iterable[Owned]) -> tuple[Drift, ...]:
    """Return the limits that were changed after the policy set them; deleted entities are left out."""
    return tuple(
        Drift(one, value)
        for one in owned
        if one.entity in found and (value := found[one.entity].get(one.limit)) != one.value
    )


def commands(
    steps: Iterable[LimitChange], associations: Iterable[Association]
) -> Iterator[tuple[list[Entity], dict[LimitField, int | None]]]:
    """Group the steps for `Sacctmgr.set_limits`; equal changes to accounts or to users share one call.

    `associations` are the associations of the cluster.

    QOS that lose a name from their Preempt come last, because slurmdbd 22.05 then lets no QOS preempt them
    until slurmdbd is restarted. QOS that would otherwise preempt each other for a moment come first, because
    slurmdbd refuses such a cycle.
    """
    steps = tuple(steps)
    changes: dict[Entity, dict[LimitField, int | None]] = {}
    for step in steps:
        changes.setdefault(step.entity, {})[step.limit] = step.new

    accounts_of: dict[str, set[str]] = {}
    for one in associations:
        accounts_of.setdefault(one.user, set()).add(one.account)

    def alike(entity: Entity) -> tuple[object, ...]:
        values = tuple(sorted((limit, -1 if new is None else new) for limit, new in changes[entity].items()))
        return (entity.kind, entity.name if entity.kind is EntityKind.QOS else "", values)

    reversed_qos = _reversed_qos(steps)

    def order(entity: Entity) -> tuple[object, ...]:
        removes = any(limit.name == "Preempt" and new is None for limit, new in changes[entity].items())
        return (entity not in reversed_qos, removes, *alike(entity))

    for _, group in groupby(sorted(changes, key=order), key=alike):
        for entities in _calls(list(group), accounts_of):
            yield entities, changes[entities[0]]


def _calls(entities: Sequence[Entity], accounts_of: Mapping[str, set[str]]) -> Iterator[list[Entity]]:
    """Split entities with equal changes into calls; sacctmgr changes each named user in each named account.

    Users who also belong to a named account without this change are changed in one call per account.
    """
    accounts, n_equal = {one.name for one in entities}, Counter(one.user for one in entities)

    def key(entity: Entity) -> str:
        n_reached = len(accounts_of.get(entity.user, set()) & accounts)
        return entity.name if n_reached > n_equal[entity.user] else ""

    for _, call in groupby(sorted(entities, key=lambda entity: (key(entity), entity)), key=key):
        yield list(call)


def _reversed_qos(steps: Iterable[LimitChange]) -> frozenset[Entity]:
    """Return each QOS that stops preempting another QOS by which it will be preempted, even indirectly."""
    edges: dict[str, set[str]] = {}
    taken: list[tuple[Entity, str]] = []
    for step in steps:
        if step.limit.name != "Preempt":
            continue
        if step.new is None:
            taken.append((step.entity, step.limit.item))
        edges.setdefault(step.entity.name, set()).add(step.limit.item)

    def reaches(start: str, end: str) -> bool:
        found, ahead = {start}, [start]
        while ahead:
            new = edges.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return end in found

    return frozenset(entity for entity, item in taken if reaches(item, entity.name))


def _overridden(wanted: RequiredLimits, found: Mapping[Entity, Limits]) -> Iterator[str]:
    """Yield a remark for each limit of a user, set by hand, that is looser than the limit of the account."""
    for entity in sorted(wanted.managed):
        if entity.kind is not EntityKind.USER or entity not in found:
            continue
        of_account = wanted.bounds.get(Entity(EntityKind.ACCOUNT, entity.name), {})
        of_user = wanted.bounds.get(entity, {})
        for limit, value in sorted(found[entity].items()):
            bound = of_account.get(limit)
            if limit.name in INHERITED and bound is not None and limit not in of_user and value > bound.value:
                yield (
                    f"{entity} has its own limit {limit.show(value)}, set by hand, which overrides the "
                    f"account's limit {limit.amount(bound.value)} (rule {bound.rule})"
                )
