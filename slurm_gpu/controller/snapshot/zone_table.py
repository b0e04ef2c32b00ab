"""Publish to job_submit.lua the score of each zone, and the nodes that accept jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.config.site import Placement, Zone
from slurm_gpu.controller.queue.amounts import CountingFacts, amounts_of
from slurm_gpu.controller.snapshot.encoding import encode
from slurm_gpu.controller.snapshot.feature_table import FeatureTable, OrderOf, feature_table
from slurm_gpu.placement.zone_constraint import is_zone_name
from slurm_gpu.placement.zones import JobScale, ZoneLoad, most_medium_nodes, scale_of, scores
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.text.hostlist import compress, expand

# Zone name in a pool of nodes outside all usable zones.
NO_ZONE = "-"


@dataclass(frozen=True, slots=True)
class ZoneNodes:
    """A zone in slurm-gpu.yaml, and its nodes in Slurm."""

    name: str
    role: str | None
    nodes: tuple[SlurmNode, ...]
    """The nodes of the zone that exist in Slurm."""
    error: str | None = None
    """The reason why jobs cannot be kept in the zone; None if the zone is usable."""
    remedy: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """Identical nodes that accept jobs, in one zone and partition; amounts are per node."""

    zone: str
    partition: str
    gpus: int
    cpus: int
    mib: int
    types: tuple[tuple[str, int], ...]
    """Number of GPUs by type, in lower case."""
    features: tuple[str, ...]
    nodes: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class ZoneTable:
    """The state of all zones at one moment."""

    mode: str
    """`observe`, `advise` or `enforce`."""
    most_medium: int
    """Maximum number of nodes of a medium job."""
    scores: Mapping[str, Mapping[JobScale, int]]
    """Scores of usable zones, by zone and job scale."""
    pools: tuple[Pool, ...] = ()
    features: FeatureTable | None = None

    def lines(self) -> Iterator[str]:
        """Yield the lines of snapshot.txt (docs/contracts.md, section 4)."""
        yield f"placement {self.mode} medium={self.most_medium}"
        for zone, by_scale in self.scores.items():
            points = " ".join(f"{scale}={by_scale[scale]}" for scale in JobScale)
            yield f"score {encode(zone)} {points}"
        if self.features is not None:
            yield from self.features.lines()
        for pool in self.pools:
            words = [
                f"nodes={pool.nodes} gpus={pool.gpus} cpus={pool.cpus} mib={pool.mib}",
                *([_pairs(pool.types)] if pool.types else []),
                *([f"features={','.join(map(encode, pool.features))}"] if pool.features else []),
            ]
            zone = pool.zone if pool.zone == NO_ZONE else encode(pool.zone)
            yield " ".join(("pool", zone, encode(pool.partition), *words))


class ZoneTables:
    """Rebuilds the table after each poll of nodes; nodes are polled much less often than the queue."""

    def __init__(self, placement: Placement, zones: Mapping[str, Zone], order_of: OrderOf) -> None:
        self._placement, self._zones, self._order_of = placement, zones, order_of
        self._nodes: Sequence[SlurmNode] | None = None
        self.last: ZoneTable | None = None

    def of(
        self, nodes: Sequence[SlurmNode], jobs: Iterable[CountedJob], facts: CountingFacts
    ) -> ZoneTable | None:
        """Return the table for these nodes and the current demand; None if no zone or feature is usable."""
        if (self._zones or self._placement.features) and nodes is not self._nodes:
            zones = zone_nodes(self._zones, nodes)
            demand = demand_by_scale(jobs, facts, medium_bound(zones))
            features = feature_table(self._placement, nodes, self._order_of)
            self._nodes, self.last = nodes, table(self._placement, zones, nodes, demand, features)
        return self.last


def zone_nodes(zones: Mapping[str, Zone], nodes: Iterable[SlurmNode]) -> list[ZoneNodes]:
    """Return the site's zones in the order of slurm-gpu.yaml; raise ValueError for an invalid hostlist.

    Jobs are kept in a zone by a feature with the zone's name. All nodes of the zone, and no other nodes, must
    have this feature.
    """
    by_name = {node.name: node for node in nodes}
    having: dict[str, set[str]] = {}
    for node in by_name.values():
        for feature in node.features:
            having.setdefault(feature, set()).add(node.name)
    return [_zone(name, zone, by_name, having.get(name, set())) for name, zone in zones.items()]


def table(
    placement: Placement,
    zones: Sequence[ZoneNodes],
    nodes: Iterable[SlurmNode],
    demand: Mapping[JobScale, int],
    features: FeatureTable | None = None,
) -> ZoneTable | None:
    """Return the table for job_submit.lua; None if no zone or feature is usable.

    Unmanaged partitions have no pool, so their jobs are not changed.
    """
    used = [zone for zone in zones if zone.error is None]
    if not used and features is None:
        return None
    loads = [_load(zone) for zone in used]
    zone_of = {node.name: zone.name for zone in used for node in zone.nodes}
    counts: Counter[Pool] = Counter()
    for node in nodes:
        if node.n_gpus and not out_of_service(node):
            counts.update(
                _pool(zone_of.get(node.name, NO_ZONE), partition, node)
                for partition in node.partitions
                if placement.partitions is None or partition in placement.partitions
            )
    pools = tuple(_counted(pool, n) for pool, n in sorted(counts.items()))
    return ZoneTable(placement.mode, most_medium_nodes(loads), scores(loads, demand), pools, features)


def demand_by_scale(
    jobs: Iterable[CountedJob], facts: CountingFacts, most_medium: int
) -> dict[JobScale, int]:
    """Return, for each job scale, the mgpu allocated to running jobs and requested by pending jobs."""
    demand = dict.fromkeys(JobScale, 0)
    for job in jobs:
        if job.phase is not JobPhase.ENDED:
            mgpu = amounts_of(job, facts).mgpu
            if mgpu:
                demand[scale_of(job.n_nodes, most_medium)] += mgpu * job.n_tasks
    return demand


def medium_bound(zones: Iterable[ZoneNodes]) -> int:
    """Return the maximum number of nodes of a medium job, given these zones."""
    return most_medium_nodes(_load(zone) for zone in zones if zone.error is None)


def _zone(name: str, zone: Zone, by_name: Mapping[str, SlurmNode], having: set[str]) -> ZoneNodes:
    hosts = [host for host in expand(zone.nodes) if host in by_name]
    nodes = tuple(by_name[host] for host in hosts)
    error = remedy = None
    lacking, others = compress(set(hosts) - having), compress(having - set(hosts))
    if not is_zone_name(name):
        error = "its name is not valid as the name of a feature"
        remedy = "rename it in slurm-gpu.yaml: a letter, then letters, digits, `_`, `.` and `-`"
    elif not hosts:
        error = f"its nodes {zone.nodes} do not exist in slurmctld"
        remedy = "fix nodes: in slurm-gpu.yaml"
    elif lacking:
        error = f"{lacking} {_lacks(lacking)} the feature {name}"
        remedy = f"add Feature={name} to the line NodeName={lacking} of slurm.conf, then scontrol reconfigure"
    elif others:
        error = f"{others} outside the zone {_has(others)} the feature {name} too"
        remedy = f"remove Feature={name} from {others} in slurm.conf, or add these nodes to the zone"
    return ZoneNodes(name, zone.role, nodes, error, remedy)


def _lacks(hosts: str) -> str:
    return "lack" if "[" in hosts or "," in hosts else "lacks"


def _has(hosts: str) -> str:
    return "have" if "[" in hosts or "," in hosts else "has"


def _load(zone: ZoneNodes) -> ZoneLoad:
    taking = [node for node in zone.nodes if node.n_gpus and not out_of_service(node)]
    return ZoneLoad(
        zone.name,
        zone.role,
        nodes=len(taking),
        free_nodes=sum(
            not any(node.gpus_allocated.values()) and not node.shards_allocated for node in taking
        ),
        mgpu=sum(node.n_gpus for node in taking) * 1000,
    )


def _pool(zone: str, partition: str, node: SlurmNode) -> Pool:
    types: Counter[str] = Counter()
    for kind, count in node.gpus.items():
        if kind:
            types[kind.lower()] += count
    return Pool(
        zone,
        partition,
        gpus=node.n_gpus,
        cpus=node.cpus,
        mib=node.memory_mib,
        types=tuple(sorted(types.items())),
        features=tuple(sorted(set(node.features))),
        nodes=0,
    )


def _counted(pool: Pool, nodes: int) -> Pool:
    return Pool(
        pool.zone, pool.partition, pool.gpus, pool.cpus, pool.mib, pool.types, pool.features, nodes=nodes
    )


def _pairs(types: Iterable[tuple[str, int]]) -> str:
    return "types=" + ",".join(f"{encode(kind)}:{count}" for kind, count in types)
