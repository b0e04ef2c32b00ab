"""The last ten minutes of one node as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMinutes:
    """One node: each value is of the time since the one before, up to `at_s` (wall clock); None for a gap."""

    node: str
    at_s: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]

    def __post_init__(self) -> None:
        """Raise ValueError where the moments are not in order, or a series has not a value for each."""
        lengths = {name: len(items) for name, items in self.series.items() if len(items) != len(self.at_s)}
        if lengths or list(self.at_s) != sorted(set(self.at_s)):
            raise ValueError(f"{self.node}: {len(self.at_s)} moments in order, and {lengths}")
