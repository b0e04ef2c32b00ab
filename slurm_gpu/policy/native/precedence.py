"""Find limits on running jobs that Slurm does not check, because a QOS has the same limit.

Slurm uses the limit of the partition's QOS, otherwise that of the job's QOS, otherwise those of associations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slurm_gpu.policy.native.required import RuleBound
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind, LimitField

# Field of a QOS → field of associations.
_OF_ASSOCIATIONS = {"GrpTRES": "GrpTRES", "GrpJobs": "GrpJobs", "MaxJobsPU": "MaxJobs"}
_SUMS = (*_OF_ASSOCIATIONS, "MaxTRESPU", "MaxTRESPA", "MaxJobsPA")

Bounds = Mapping[Entity, Mapping[LimitField, RuleBound]]


def replaced_limits(
    bounds: Bounds, rules: Collection[str], partition_qos: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield a remark for each QOS whose limit replaces those of other rules.

    `rules` are the rules whose limits only Slurm can enforce; `partition_qos` is the QOS of each partition.
    """
    of_partitions = {Entity(EntityKind.QOS, name) for name in partition_qos.values() if name is not None}
    for qos, fields in sorted(bounds.items()):
        if qos.kind is not EntityKind.QOS:
            continue
        for limit, bound in sorted(fields.items()):
            lost = {
                found.rule
                for entity, others in bounds.items()
                for name in _replaced(limit.name, entity, is_of_partition=qos in of_partitions)
                if (found := others.get(LimitField(name, limit.item))) and entity not in of_partitions
            }
            if named := sorted(lost.intersection(rules) - {bound.rule}):
                yield (
                    f"jobs in {qos}: Slurm checks {limit.show(bound.value)} (rule {bound.rule}) instead of "
                    f"the limits of {'rule' if len(named) == 1 else 'rules'} {', '.join(named)}"
                )


def _replaced(name: str, entity: Entity, *, is_of_partition: bool) -> Iterator[str]:
    """Yield the field of an entity that a field of a QOS replaces, if any."""
    if entity.kind is not EntityKind.QOS:
        if name in _OF_ASSOCIATIONS:
            yield _OF_ASSOCIATIONS[name]
    elif is_of_partition and name in _SUMS:
        yield name
