"""The last ten minutes of one node's host values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMinutes:
    """The values of one node; each covers the time from the previous one to `at_s` (wall clock).

    None: not measured.
    """

    node: str
    at_s: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]

    def __post_init__(self) -> None:
        """Raise ValueError if the times are not ascending, or if a series has another length."""
        lengths = {name: len(items) for name, items in self.series.items() if len(items) != len(self.at_s)}
        if lengths or list(self.at_s) != sorted(set(self.at_s)):
            raise ValueError(f"{self.node}: {len(self.at_s)} moments in order, and {lengths}")
