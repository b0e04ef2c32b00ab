"""Record the periods of each node's state in Slurm; these periods are the denominator of all rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, func, select

from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.storage.schema import node_period
from slurm_gpu.database.storage.upsert import upsert
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service

UP = "up"
GONE = "gone"
# After slurmctld restarts, nodes do not respond for a while. A shorter silence does not begin a new period.
SETTLED_S = 150
_SILENT_STATES = frozenset({"not_responding", "unknown"})
_RECORDED = ("server_type", "zone", "gpus", "cpus", "memory_mib", "state")


@dataclass(frozen=True, slots=True)
class Places:
    """The server types and zones of nodes according to slurm-gpu.yaml."""

    server_types: Mapping[str, str] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: SiteConfig) -> Places:
        """Parse the hostlists; raise UsageError if one is invalid, or if a node is in two of them."""
        return cls(group_by_node("server_types", config.server_types), group_by_node("zones", config.zones))


def is_silent(node: SlurmNode) -> bool:
    """Return whether the node's only fault is a missing response to slurmctld; it may still be up."""
    words = out_of_service(node)
    return bool(words) and _SILENT_STATES.issuperset(words)


def store_node_periods(
    connection: Connection,
    nodes: Mapping[str, SlurmNode],
    places: Places,
    now_s: int,
    silent_since: Mapping[str, int] | None = None,
) -> int:
    """Begin a new period for each node that changed; return the number of these nodes.

    `nodes` must contain all nodes in Slurm, and must not be empty. A recorded node that is missing in `nodes`
    gets a period with the state `gone`. `silent_since` contains the nodes whose only fault is a missing
    response, each with the time since which the response has been missing. The period of such a node begins
    at this time, but is stored only after SETTLED_S.
    """
    since = {} if silent_since is None else silent_since
    last = _last_periods(connection)
    rows: list[dict[str, Any]] = []
    for name in sorted(nodes.keys() | last.keys()):
        before = last.get(name)
        began_s = since.get(name, now_s)
        if before is not None and name in since and now_s - began_s < SETTLED_S:
            continue
        now = _period(nodes[name], places) if name in nodes else _gone(before)
        if before is None or any(before[key] != now[key] for key in _RECORDED):
            # Even if the clock was set back, a period begins after the previous one.
            from_s = began_s if before is None else max(began_s, before["from_s"] + 1)
            rows.append({"node": name, "from_s": from_s, **now})
    if rows:
        connection.execute(upsert(connection, node_period, ("node", "from_s"), _RECORDED), rows)
    return len(rows)


def _last_periods(connection: Connection) -> dict[str, Mapping[str, Any]]:
    newest = (
        select(node_period.c.node, func.max(node_period.c.from_s).label("from_s"))
        .group_by(node_period.c.node)
        .subquery()
    )
    same = and_(node_period.c.node == newest.c.node, node_period.c.from_s == newest.c.from_s)
    query = select(node_period).join(newest, same)
    return {row["node"]: dict(row) for row in connection.execute(query).mappings()}


def _period(node: SlurmNode, places: Places) -> dict[str, Any]:
    return {
        "server_type": places.server_types.get(node.name),
        "zone": places.zones.get(node.name),
        "gpus": node.n_gpus,
        "cpus": node.cpus,
        "memory_mib": node.memory_mib,
        "state": "+".join(out_of_service(node)) or UP,
    }


def _gone(before: Mapping[str, Any] | None) -> dict[str, Any]:
    assert before is not None
    kept = {"server_type": before["server_type"], "zone": before["zone"]}
    return {**kept, "gpus": 0, "cpus": 0, "memory_mib": 0, "state": GONE}
