"""Simulate a slurmdbd that can fail at any call, before or after it makes the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.sacctmgr import NEW_QOS, Association, Entity, EntityKind, LimitField, Qos

TRES = frozenset({"cpu", "mem", "node", "gres/gpu", "gres/gpu:a100"})


def account(name: str, parent: str = "root", **limits: int) -> Association:
    return Association(account=name, parent=parent, limits=fields(**limits))


def user(name: str, of: str, partition: str = "", **limits: int) -> Association:
    return Association(account=of, user=name, partition=partition, limits=fields(**limits))


def qos(name: str, **limits: int) -> Qos:
    return Qos(name=name, limits=fields(**limits))


def fields(**limits: int) -> dict[LimitField, int]:
    """Return limits by field, such as MaxTRES_gpu=4 or MaxWall=60."""
    return {limit(name): value for name, value in limits.items()}


def limit(name: str) -> LimitField:
    field, _, item = name.partition("_")
    items = {"gpu": "gres/gpu", "a100": "gres/gpu:a100", "deny": "DenyOnLimit"}
    return LimitField(field, items.get(item, item))


def of(name: str) -> Entity:
    """Return the entity of a name: qos:long, vision or vision/alice."""
    if name.startswith("qos:"):
        return Entity(EntityKind.QOS, name[4:])
    name, _, who = name.partition("/")
    return Entity(EntityKind.USER if who else EntityKind.ACCOUNT, name, who)


class MemoryStore:
    """A sacctmgr in memory, in which `failures` changes fail, starting with number `fail_at` (from 0)."""

    def __init__(self, associations: Sequence[Association], qos: Sequence[Qos] = ()) -> None:
        self._associations, self._qos = list(associations), list(qos)
        self.changes = 0
        self.fail_at: int | None = None
        # The number of calls that fail before calls succeed again.
        self.failures = 1
        # Whether a failed call has made its change, as if only the answer were lost.
        self.changes_despite_failure = False

    def tracked_tres(self) -> frozenset[str]:
        return TRES

    def associations(self, cluster: str) -> Sequence[Association]:
        return tuple(self._associations)

    def qos(self) -> Sequence[Qos]:
        return tuple(self._qos)

    def set_limits(
        self, cluster: str, entities: Sequence[Entity], values: Mapping[LimitField, int | None]
    ) -> None:
        number, self.changes = self.changes, self.changes + 1
        fails = self.fail_at is not None and self.fail_at <= number < self.fail_at + self.failures
        if not fails or self.changes_despite_failure:
            for entity in self._reached(entities):
                self._set(entity, values)
        if fails:
            raise SlurmError("sacctmgr gave no answer")

    def _reached(self, entities: Sequence[Entity]) -> Sequence[Entity]:
        """Return the entities that sacctmgr changes: each named user in each named account."""
        if entities[0].kind is not EntityKind.USER:
            return entities
        accounts, users = {one.name for one in entities}, {one.user for one in entities}
        return [one.entity for one in self._associations if one.account in accounts and one.user in users]

    def add_qos(self, name: str, description: str, *, requeued: bool) -> None:
        mode = "requeue" if requeued else "cluster"
        self._qos.append(Qos(name=name, limits=NEW_QOS, preempt_mode=mode))

    def set_by_hand(self, entity: str, **limits: int | None) -> None:
        """Change limits as an operator with sacctmgr does."""
        self._set(of(entity), {limit(name): value for name, value in limits.items()})

    def _set(self, entity: Entity, values: Mapping[LimitField, int | None]) -> None:
        if entity.kind is EntityKind.QOS:
            self._qos = [
                replace(one, limits=_changed(one.limits, values)) if one.entity == entity else one
                for one in self._qos
            ]
        else:
            self._associations = [
                replace(one, limits=_changed(one.limits, values)) if one.entity == entity else one
                for one in self._associations
            ]


def _changed(
    limits: Mapping[LimitField, int], values: Mapping[LimitField, int | None]
) -> dict[LimitField, int]:
    merged: dict[LimitField, int | None] = {**limits, **values}
    return {field: value for field, value in merged.items() if value is not None}
