"""Publish to job_submit.lua the order in which single-node jobs use the types of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurm_gpu.config.site import Placement
from slurm_gpu.controller.snapshot.encoding import encode
from slurm_gpu.placement.node import gpus_by_type
from slurm_gpu.placement.order import NodeKind, NodeOrder
from slurm_gpu.placement.zone_constraint import is_zone_name
from slurm_gpu.simulate.request import ResourceRequest
from slurm_gpu.slurm.client import SlurmNode

OrderOf = Callable[[Mapping[NodeKind, int]], NodeOrder | None]


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """The order of features for each common class of jobs."""

    partitions: tuple[str, ...]
    """The partitions in which each node with GPUs has exactly one of the features."""
    orders: Mapping[ResourceRequest, tuple[str, ...]]

    def lines(self) -> Iterator[str]:
        """Yield the lines of snapshot.txt (docs/contracts.md, section 4)."""
        yield " ".join(("features", *map(encode, self.partitions)))
        for job, names in self.orders.items():
            yield f"order {job.mgpu} {job.cpus} {job.memory_mib} {','.join(map(encode, names))}"


def feature_table(placement: Placement, nodes: Iterable[SlurmNode], order_of: OrderOf) -> FeatureTable | None:
    """Return the table; None if no partition has usable features, or no jobs were seen.

    Nodes that currently accept no jobs count, because they may return while a job waits. A constraint with
    all features therefore excludes no node that the job could use.
    """
    names = frozenset(filter(is_zone_name, placement.features))
    groups: dict[str, Counter[NodeKind]] = {}
    usable: dict[str, bool] = {}
    for node in nodes:
        if not node.n_gpus:
            continue
        having = names.intersection(node.features)
        for partition in node.partitions:
            if placement.partitions is None or partition in placement.partitions:
                usable[partition] = usable.get(partition, True) and len(having) == 1
        types, _ = gpus_by_type({kind.lower(): n for kind, n in node.gpus.items()}, {})
        for name in having:
            groups.setdefault(name, Counter())[NodeKind(types, node.cpus, node.memory_mib)] += 1
    partitions = tuple(sorted(partition for partition, is_usable in usable.items() if is_usable))
    order = order_of(sum(groups.values(), Counter())) if partitions and len(groups) > 1 else None
    if order is None:
        return None
    # A job that requests a GPU type can use only nodes with this type.
    untyped = (job for job in order.common if not job.gpu_type)
    return FeatureTable(partitions, {job: tuple(order.ranked(job, groups)) for job in untyped})
