"""The last ten minutes of one node's host values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMinutes:
    """Host values of one node. Each covers the time from the previous value to `at_s` (wall clock).

    None means not measured.
    """

    node: str
    at_s: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]

    def __post_init__(self) -> None:
        """Raise ValueError if the times are not ascending, or if a series has a different length."""
        lengths = {name: len(items) for name, items in self.series.items() if len(items) != len(self.at_s)}
        for before, after in pairwise(self.at_s):
            if not after > before:
                raise ValueError(
                    f"{self.node}: the times are not strictly ascending: {after} follows {before}"
                )
        if lengths:
            raise ValueError(
                f"{self.node}: {len(self.at_s)} times, but these series have other lengths: {lengths}"
            )
