"""On which server types and in which zones a run was: by what slurm-gpudbd saw of its nodes then.

Where it had not seen a node yet, slurm-gpu.yaml tells, and what it does not name, what was seen first.
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
    """When a node's group changed, and to which: the first holds before that, too."""

    from_s: list[int]
    groups: list[tuple[str | None, str | None]]


class RunPlacement:
    """Names of server types and zones by nodes and time, as they are in the database now."""

    def __init__(self, connection: Connection, places: Places) -> None:
        self._places = places
        self._courses: dict[str, _GroupHistory] = {}
        changes: set[int] = set()
        columns = node_period.c.node, node_period.c.from_s, node_period.c.server_type, node_period.c.zone
        for node, from_s, *seen in connection.execute(select(*columns).order_by(*columns[:2])):
            course = self._courses.get(node)
            if course is None:
                first = self._said(node, tuple(seen))
                self._courses[node] = course = _GroupHistory([0], [first])
            group = self._seen(node, tuple(seen))
            if group != course.groups[-1]:
                course.from_s.append(from_s)
                course.groups.append(group)
                changes.add(from_s)
        self._changes = sorted(changes)
        self._known: dict[tuple[str, int], tuple[str | None, str | None]] = {}

    def of(self, nodes: str, submit_s: int, start_s: int | None) -> tuple[str | None, str | None]:
        """(server types, zones) of a run, each in order and joined by commas; None of a run without nodes.

        Its nodes count as they were when it started.
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
        course = self._courses.get(node)
        if course is None:
            return self._places.server_types.get(node), self._places.zones.get(node)
        return course.groups[max(0, bisect_right(course.from_s, at_s) - 1)]

    def _said(self, node: str, seen: tuple[str | None, ...]) -> tuple[str | None, str | None]:
        kind, zone = seen
        return self._places.server_types.get(node, kind), self._places.zones.get(node, zone)

    def _seen(self, node: str, seen: tuple[str | None, ...]) -> tuple[str | None, str | None]:
        kind, zone = seen
        return (
            self._places.server_types.get(node) if kind is None else kind,
            self._places.zones.get(node) if zone is None else zone,
        )


def _joined(names: set[str | None]) -> str | None:
    return ",".join(sorted(name for name in names if name is not None))[:NAME_LENGTH] or None
