"""Determine the server types and zones of nodes over time, and the groups of each run's nodes.

A group is a pair (server type, zone). Both values are those that slurm-gpudbd recorded for the start of the
run. A value that was not recorded is replaced by the current value in slurm-gpu.yaml, otherwise by the first
recorded value, otherwise by OTHER.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.reports.category import Category, Floats, Integers
from slurm_gpu.reports.job_table import OTHER

# A pair of server type and zone.
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePeriod:
    """A row of node_period: the properties of a node until its next row."""

    node: str
    from_s: int
    server_type: str | None
    zone: str | None
    gpus: int
    cpus: int
    memory_mib: int
    state: str


class Placing:
    """The groups of nodes over time; the code of a group is its index in `groups`."""

    def __init__(self, periods: Sequence[NodePeriod], places: Places) -> None:
        self.groups: list[Group] = []
        self._codes: dict[Group, int] = {}
        self._places = places
        self._courses = {node: self._course(node, some) for node, some in by_node(periods).items()}
        changes = {from_s for course in self._courses.values() for from_s in course[0][1:]}
        self._changes = np.array(sorted(changes), np.float64)

    def group_at(self, node: str, at_s: float) -> int:
        """Return the code of the group that a node belongs to at a time."""
        course = self._courses.get(node)
        if course is None:
            course = self._courses[node] = self._course(node, [])
        from_s, codes = course
        return codes[max(0, bisect_right(from_s, at_s) - 1)]

    def compositions(self, nodes: Category, at_s: Floats) -> tuple[Integers, list[Counter[int]]]:
        """Return, for each row, an index into a list of node counts by group, and the list itself.

        Rows with the same nodes share an index unless a node changed its group between them.
        """
        epochs = np.searchsorted(self._changes, at_s, side="right")
        keys = nodes.codes.astype(np.int64) * (len(self._changes) + 1) + epochs
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        sets: dict[int, frozenset[str]] = {}
        found: list[Counter[int]] = []
        for code, when_s in zip(nodes.codes[first].tolist(), at_s[first].tolist(), strict=True):
            if code not in sets:
                sets[code] = node_set(nodes.names[code]) if code >= 0 else frozenset()
            found.append(Counter(self.group_at(node, when_s) for node in sets[code]) or self._nowhere())
        return place.astype(np.int64), found

    def _nowhere(self) -> Counter[int]:
        return Counter({self._code((OTHER, OTHER)): 1})

    def _course(self, node: str, periods: Sequence[NodePeriod]) -> tuple[list[int], list[int]]:
        """Return the times and codes of a node's groups; the first group also applies before its time."""
        from_s, codes = [0], [self._code(self._group(node, periods[0] if periods else None, before=True))]
        for period in periods:
            code = self._code(self._group(node, period, before=False))
            if code != codes[-1]:
                from_s.append(period.from_s)
                codes.append(code)
        return from_s, codes

    def _group(self, node: str, period: NodePeriod | None, *, before: bool) -> Group:
        def one(seen: str | None, places: Mapping[str, str]) -> str:
            configured = places.get(node)
            order = (configured, seen) if before else (seen, configured)
            return next((name for name in order if name is not None), OTHER)

        return (
            one(None if period is None else period.server_type, self._places.server_types),
            one(None if period is None else period.zone, self._places.zones),
        )

    def _code(self, group: Group) -> int:
        if group not in self._codes:
            self._codes[group] = len(self.groups)
            self.groups.append(group)
        return self._codes[group]


def by_node(periods: Sequence[NodePeriod]) -> dict[str, list[NodePeriod]]:
    """Return the periods of each node in chronological order."""
    found: dict[str, list[NodePeriod]] = {}
    for period in sorted(periods, key=lambda period: (period.node, period.from_s)):
        found.setdefault(period.node, []).append(period)
    return found
