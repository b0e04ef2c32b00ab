"""What has to change so that Slurm's own limits are as a policy wants them; a pure comparison.

Only what a policy ever set is its own (`Owned`). A limit that somebody set by hand, and that no rule names,
stays; one that no rule names any more, or whose account is no longer managed, becomes what it was before the
policy set it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from slurm_gpu.policy.native.fields import INHERITED
from slurm_gpu.policy.native.wanted import WantedLimits
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind, LimitField, Limits


@dataclass(frozen=True, slots=True)
class Owned:
    """A limit that the policy set."""

    entity: Entity
    limit: LimitField
    value: int
    """As the policy set it."""
    before: int | None
    """As it was before the policy first set it."""
    rule: str


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One limit that changes; None is no limit."""

    entity: Entity
    limit: LimitField
    old: int | None
    new: int | None
    rule: str = ""
    """Which rule wants it; "" where none does any more."""
    undoes: bool = False
    """Whether it undoes another step; what rules say does not matter then."""

    def __str__(self) -> str:
        why = f"rule {self.rule}" if self.rule else "no rule wants it any more"
        if self.undoes:
            why = "as before the apply"
        if self.limit.holds_names:
            return f"{self.entity}: {self.limit.show(self.new)} ({why})"
        was = "no limit" if self.old is None else self.limit.amount(self.old)
        return f"{self.entity}: {self.limit.show(self.new)} (was {was}; {why})"

    @property
    def back(self) -> LimitChange:
        """The step that undoes this one."""
        return LimitChange(self.entity, self.limit, self.new, self.old, undoes=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """What to change, what is the policy's own afterwards, and what is worth knowing."""

    steps: tuple[LimitChange, ...] = ()
    owned: tuple[Owned, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """A limit that is not as the policy last set it: somebody changed it by hand."""

    owned: Owned
    found: int | None

    def __str__(self) -> str:
        one = self.owned
        is_now = "taken away" if self.found is None else f"set to {one.limit.amount(self.found)}"
        if one.limit.holds_names:
            return f"{one.entity}: {one.limit.name} {one.limit.item} (rule {one.rule}) was taken away by hand"
        return f"{one.entity}: {one.limit.show(one.value)} (rule {one.rule}) was {is_now} by hand"


def difference(wanted: WantedLimits, found: Mapping[Entity, Limits], owned: Iterable[Owned]) -> Difference:
    """Steps from what was found to what is wanted."""
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
            continue  # it is gone, and its limits with it
        value = found[entity].get(limit)
        if value != one.value:
            remarks.append(f"{Drift(one, value)}; no rule wants it any more, so it stays as it is")
        elif value != one.before:
            steps.append(LimitChange(entity, limit, value, one.before))
    return Difference(tuple(steps), tuple(kept), tuple(remarks))


def drift(found: Mapping[Entity, Limits], owned: Iterable[Owned]) -> tuple[Drift, ...]:
    """Limits that somebody changed since the policy set them; of what is gone there is nothing to tell."""
    return tuple(
        Drift(one, value)
        for one in owned
        if one.entity in found and (value := found[one.entity].get(one.limit)) != one.value
    )


def commands(steps: Iterable[LimitChange]) -> Iterator[tuple[list[Entity], dict[LimitField, int | None]]]:
    """The steps in few calls of `Sacctmgr.set_limits`: users of an account who change alike go as one.

    QOS that lose a name from their Preempt come last: slurmdbd 22.05 lets none preempt them afterwards, until
    it starts anew. But for those that would preempt, until then, who is to preempt them: slurmdbd refuses it.
    """
    steps = tuple(steps)
    changes: dict[Entity, dict[LimitField, int | None]] = {}
    for step in steps:
        changes.setdefault(step.entity, {})[step.limit] = step.new

    def alike(entity: Entity) -> tuple[object, ...]:
        values = tuple(sorted((limit, -1 if new is None else new) for limit, new in changes[entity].items()))
        return (entity.kind, entity.name, values)

    turned = _turned(steps)

    def order(entity: Entity) -> tuple[object, ...]:
        gives_up = any(limit.name == "Preempt" and new is None for limit, new in changes[entity].items())
        return (entity not in turned, gives_up, *alike(entity))

    for _, group in groupby(sorted(changes, key=order), key=alike):
        entities = sorted(group)
        yield entities, changes[entities[0]]


def _turned(steps: Iterable[LimitChange]) -> frozenset[Entity]:
    """QOS that give up another one which, by these steps, is to preempt them, itself or by way of others."""
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


def _overridden(wanted: WantedLimits, found: Mapping[Entity, Limits]) -> Iterator[str]:
    """Users whose own limits, set by hand, are looser than what their account would hand on to them."""
    for entity in sorted(wanted.managed):
        if entity.kind is not EntityKind.USER or entity not in found:
            continue
        of_account = wanted.bounds.get(Entity(EntityKind.ACCOUNT, entity.name), {})
        of_user = wanted.bounds.get(entity, {})
        for limit, value in sorted(found[entity].items()):
            bound = of_account.get(limit)
            if limit.name in INHERITED and bound is not None and limit not in of_user and value > bound.value:
                yield (
                    f"{entity} has {limit.show(value)} of its own, set by hand, which counts in place of the "
                    f"account's {limit.amount(bound.value)} (rule {bound.rule})"
                )
