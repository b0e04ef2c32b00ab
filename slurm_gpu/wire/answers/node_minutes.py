"""The last ten minutes of one node as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.errors import DatabaseError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMinutes:
    """One node: each value is of the time since the one before, up to `at_s` (wall clock); None for a gap."""

    node: str
    at_s: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {"node": self.node, "at_s": self.at_s, "series": self.series}

    @classmethod
    def from_json(cls, value: Any) -> NodeMinutes:
        """Read one node of an answer; raises DatabaseError where it is none."""
        try:
            at_s = tuple(float(item) for item in value["at_s"])
            series = {
                str(name): tuple(None if item is None else float(item) for item in items)
                for name, items in value["series"].items()
            }
            node = str(value["node"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DatabaseError(f"slurm-gpudbd answered a host that cannot be read: {error!r}") from error
        lengths = {name: len(items) for name, items in series.items() if len(items) != len(at_s)}
        if lengths or list(at_s) != sorted(set(at_s)):
            raise DatabaseError(f"slurm-gpudbd answered {node}: {len(at_s)} moments in order, and {lengths}")
        return cls(node=node, at_s=at_s, series=series)
