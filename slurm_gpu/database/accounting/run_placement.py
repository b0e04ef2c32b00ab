"""Find the server types and zones that the nodes of a run had when the run started.

If nothing was recorded for a node before the start of the run, slurm-gpu.yaml applies. If slurm-gpu.yaml does
not list the node either, the first recorded state of the node applies.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from sqlalchemy import Connection, select

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.storage.schema import NAME_LENGTH, node_period

_MOST_KNOWN = 50_000


@dataclass(slots=True)
class _GroupHistory:
    """The times at which a node changed its group, and the new groups; the first group starts at time 0."""

    from_s: list[int]
    groups: list[tuple[str | None, str | None]]


class RunPlacement:
    """The server types and zones of nodes over time, as stored when this object was created."""

    def __init__(self, connection: Connection, places: Places) -> None:
        self._places = places
        self._histories: dict[str, _GroupHistory] = {}
        changes: set[int] = set()
        columns = node_period.c.node, node_period.c.from_s, node_period.c.server_type, node_period.c.zone
        for node, from_s, *seen in connection.execute(select(*columns).order_by(*columns[:2])):
            history = self._histories.get(node)
            if history is None:
                first = self._configured(node, tuple(seen))
                self._histories[node] = history = _GroupHistory([0], [first])
            group = self._recorded(node, tuple(seen))
            if group != history.groups[-1]:
                history.from_s.append(from_s)
                history.groups.append(group)
                changes.add(from_s)
        self._changes = sorted(changes)
        self._known: dict[tuple[str, int], tuple[str | None, str | None]] = {}

    def of(self, nodes: str, submit_s: int, start_s: int | None) -> tuple[str | None, str | None]:
        """Return (server types, zones) of a run, sorted and joined by commas; None for a run without nodes.

        The values are those at the start of the run, or at its submission if it has not started.
        """
        if not nodes:
            return None, None
        at_s = submit_s if start_s is None else start_s
        key = nodes, bisect_right(self._changes, at_s)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            groups = [self._group(node, at_s) for node in node_set(nodes)]
            self._known[key] = _joined({kind for kind, _ in groups}), _joined({zone for _, zone in groups})
        return self._known[key]

    def _group(self, node: str, at_s: int) -> tuple[str | None, str | None]:
        history = self._histories.get(node)
        if history is None:
            return self._places.server_types.get(node), self._places.zones.get(node)
        return history.groups[max(0, bisect_right(history.from_s, at_s) - 1)]

    def _configured(self, node: str, seen: tuple[str | None, ...]) -> tuple[str | None, str | None]:
        kind, zone = seen
        return self._places.server_types.get(node, kind), self._places.zones.get(node, zone)

    def _recorded(self, node: str, seen: tuple[str | None, ...]) -> tuple[str | None, str | None]:
        kind, zone = seen
        return (
            self._places.server_types.get(node) if kind is None else kind,
            self._places.zones.get(node) if zone is None else zone,
        )


def _joined(names: set[str | None]) -> str | None:
    return ",".join(sorted(name for name in names if name is not None))[:NAME_LENGTH] or None
