"""What job_submit.lua is told of jobs that share: whether there are places, and shards by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareTable:
    """The lines about jobs that share of a snapshot (docs/contracts.md, section 4)."""

    shards_per_gpu: int
    shares: Mapping[str, int]
    """Shards by key, as job_submit.lua writes keys."""

    def lines(self) -> Iterator[str]:
        """One that there are places, one for each key."""
        yield f"colocation {self.shards_per_gpu}"
        for key, shards in sorted(self.shares.items()):
            yield f"share {key} {shards}"
