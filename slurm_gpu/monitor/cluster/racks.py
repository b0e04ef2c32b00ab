"""Which rack each node is in, by slurm-gpu.yaml."""

from __future__ import annotations

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import UsageError
from slurm_gpu.text.hostlist import expand


def racks_by_node(config: SiteConfig) -> dict[str, str]:
    """By node; raises UsageError naming a hostlist that cannot be read, or a node that is in two racks."""
    found: dict[str, str] = {}
    for name, rack in config.racks.items():
        try:
            nodes = expand(rack.nodes)
        except ValueError as error:
            raise UsageError(f"slurm-gpu.yaml: racks.{name}.nodes: {error}") from None
        for node in nodes:
            if node in found:
                raise UsageError(
                    f"slurm-gpu.yaml: racks: {node} is in {found[node]} and in {name}; leave it in one"
                )
            found[node] = name
    return found
