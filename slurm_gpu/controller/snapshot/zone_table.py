"""What job_submit.lua is told of zones: who may be placed, where there is room, and how good each zone is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.config.site import Placement, Zone
from slurm_gpu.controller.queue.amounts import CountingFacts, amounts_of
from slurm_gpu.controller.snapshot.encoding import encode
from slurm_gpu.placement.zone_constraint import is_zone_name
from slurm_gpu.placement.zones import JobScale, ZoneLoad, most_medium_nodes, scale_of, scores
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.text.hostlist import compress, expand

NO_ZONE = "-"
"""In a pool of nodes that belong to no zone which jobs are kept in."""


@dataclass(frozen=True, slots=True)
class ZoneNodes:
    """A zone of slurm-gpu.yaml beside what Slurm knows of it."""

    name: str
    role: str | None
    nodes: tuple[SlurmNode, ...]
    """Those of its hosts that Slurm knows."""
    trouble: str | None = None
    """Why no job is kept in it; None where jobs are."""
    remedy: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """Nodes of one zone and partition that are alike and take jobs; amounts are of each node."""

    zone: str
    partition: str
    gpus: int
    cpus: int
    mib: int
    types: tuple[tuple[str, int], ...]
    """GPUs by type, in lower case."""
    features: tuple[str, ...]
    nodes: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class ZoneTable:
    """All of it, at one moment."""

    mode: str
    """observe, advise or enforce."""
    most_medium: int
    """Nodes up to which a job of several is medium."""
    scores: Mapping[str, Mapping[JobScale, int]]
    """By zone and scale, of the zones that jobs are kept in."""
    pools: tuple[Pool, ...] = ()

    def lines(self) -> Iterator[str]:
        """The lines of snapshot.txt (docs/contracts.md, section 4)."""
        yield f"placement {self.mode} medium={self.most_medium}"
        for zone, by_scale in self.scores.items():
            points = " ".join(f"{scale}={by_scale[scale]}" for scale in JobScale)
            yield f"score {encode(zone)} {points}"
        for pool in self.pools:
            words = [
                f"nodes={pool.nodes} gpus={pool.gpus} cpus={pool.cpus} mib={pool.mib}",
                *([_pairs(pool.types)] if pool.types else []),
                *([f"features={','.join(map(encode, pool.features))}"] if pool.features else []),
            ]
            zone = pool.zone if pool.zone == NO_ZONE else encode(pool.zone)
            yield " ".join(("pool", zone, encode(pool.partition), *words))


class ZoneTables:
    """The table anew whenever nodes were asked for anew, which is much rarer than the queue."""

    def __init__(self, placement: Placement, zones: Mapping[str, Zone]) -> None:
        self._placement, self._zones = placement, zones
        self._nodes: Sequence[SlurmNode] | None = None
        self.last: ZoneTable | None = None

    def of(
        self, nodes: Sequence[SlurmNode], jobs: Iterable[CountedJob], facts: CountingFacts
    ) -> ZoneTable | None:
        """That of these nodes, and of what jobs want at the moment; None where no zone is used."""
        if self._zones and nodes is not self._nodes:
            zones = zone_nodes(self._zones, nodes)
            demand = demand_by_scale(jobs, facts, medium_bound(zones))
            self._nodes, self.last = nodes, table(self._placement, zones, nodes, demand)
        return self.last


def zone_nodes(zones: Mapping[str, Zone], nodes: Iterable[SlurmNode]) -> list[ZoneNodes]:
    """The site's zones in their order; raises ValueError where a list of hosts cannot be read.

    Jobs are kept in a zone by the feature of its name, which all of its nodes must have, and no others.
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
) -> ZoneTable | None:
    """What the Lua goes by; None where there is no zone that jobs could be kept in.

    Jobs in partitions that are not managed find no pool, and are left alone.
    """
    used = [zone for zone in zones if zone.trouble is None]
    if not used:
        return None
    loads = [_load(zone) for zone in used]
    of_node: dict[str, list[str]] = {}
    for zone in used:
        for node in zone.nodes:
            of_node.setdefault(node.name, []).append(zone.name)
    counts: Counter[Pool] = Counter()
    for node in nodes:
        if node.n_gpus and not out_of_service(node):
            for zone_name in of_node.get(node.name, [NO_ZONE]):
                counts.update(
                    _pool(zone_name, partition, node)
                    for partition in node.partitions
                    if placement.partitions is None or partition in placement.partitions
                )
    pools = tuple(_counted(pool, n) for pool, n in sorted(counts.items()))
    return ZoneTable(placement.mode, most_medium_nodes(loads), scores(loads, demand), pools)


def demand_by_scale(
    jobs: Iterable[CountedJob], facts: CountingFacts, most_medium: int
) -> dict[JobScale, int]:
    """What jobs of each scale hold and wait for, in mgpu."""
    demand = dict.fromkeys(JobScale, 0)
    for job in jobs:
        if job.phase is not JobPhase.ENDED:
            mgpu = amounts_of(job, facts).mgpu
            if mgpu:
                demand[scale_of(job.n_nodes, most_medium)] += mgpu * job.n_tasks
    return demand


def medium_bound(zones: Iterable[ZoneNodes]) -> int:
    """Nodes up to which a job of several is medium, here and now."""
    return most_medium_nodes(_load(zone) for zone in zones if zone.trouble is None)


def _zone(name: str, zone: Zone, by_name: Mapping[str, SlurmNode], having: set[str]) -> ZoneNodes:
    hosts = [host for host in expand(zone.nodes) if host in by_name]
    nodes = tuple(by_name[host] for host in hosts)
    trouble = remedy = None
    lacking, others = compress(set(hosts) - having), compress(having - set(hosts))
    if not is_zone_name(name):
        trouble = "its name cannot be that of a feature"
        remedy = "give it a name of letters, digits, `_`, `.` and `-`, a letter first, in slurm-gpu.yaml"
    elif not hosts:
        trouble = f"slurmctld knows none of its nodes {zone.nodes}"
        remedy = "mend nodes: in slurm-gpu.yaml"
    elif lacking:
        trouble = f"{lacking} {_lacks(lacking)} the feature {name}"
        remedy = f"add Feature={name} to the line NodeName={lacking} of slurm.conf, then scontrol reconfigure"
    elif others:
        trouble = f"the feature {name} is also that of {others}"
        remedy = f"take Feature={name} from {others} in slurm.conf, or put these nodes into the zone"
    return ZoneNodes(name, zone.role, nodes, trouble, remedy)


def _lacks(hosts: str) -> str:
    return "lack" if "[" in hosts or "," in hosts else "lacks"


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
