"""Compute the free resources of each zone of the site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import Zone
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service


@dataclass(frozen=True, slots=True)
class ZoneCapacity:
    """The free resources of a zone's nodes that accept jobs."""

    name: str
    role: str | None
    free_mgpu: int
    """Free mgpu, including parts of shared GPUs."""
    free_nodes: int
    """Number of nodes with no GPU in use."""


class ZoneMap:
    """The zones of the site; raises UsageError for an invalid hostlist or a node in two zones."""

    def __init__(self, zones: Mapping[str, Zone]) -> None:
        hosts: dict[str, list[str]] = {name: [] for name in zones}
        for host, name in group_by_node("zones", zones).items():
            hosts[name].append(host)
        self._zones = [(name, zone.role, hosts[name]) for name, zone in zones.items()]

    def __bool__(self) -> bool:
        return bool(self._zones)

    def rooms(self, nodes: Iterable[SlurmNode]) -> Iterator[ZoneCapacity]:
        """Yield the free resources of each zone, in the order of slurm-gpu.yaml."""
        by_name = {node.name: node for node in nodes if node.n_gpus and not out_of_service(node)}
        for name, role, hosts in self._zones:
            free = {host: _free_mgpu(by_name[host]) for host in hosts if host in by_name}
            whole = sum(mgpu == by_name[host].n_gpus * 1000 for host, mgpu in free.items())
            yield ZoneCapacity(name, role, sum(free.values()), whole)


def _free_mgpu(node: SlurmNode) -> int:
    used = sum(node.gpus_allocated.values()) * 1000 + node.shared_mgpu
    return max(0, node.n_gpus * 1000 - used)
