"""Find the groups of nodes in slurm-gpu.yaml: server types, zones and racks."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.config.site import Rack, ServerType, Zone
from slurm_gpu.errors import UsageError
from slurm_gpu.text.hostlist import expand


def group_by_node(section: str, groups: Mapping[str, ServerType | Zone | Rack]) -> dict[str, str]:
    """Return the name of the group of each node.

    Raise UsageError if a hostlist is invalid, or if a node is in two groups.
    """
    found: dict[str, str] = {}
    for name, group in groups.items():
        try:
            nodes = expand(group.nodes)
        except ValueError as error:
            raise UsageError(f"slurm-gpu.yaml: {section}.{name}.nodes: {error}") from None
        for node in nodes:
            if node in found:
                raise UsageError(
                    f"slurm-gpu.yaml: {section}: {node} is in {found[node]} and in {name}; keep it in one"
                )
            found[node] = name
    return found
