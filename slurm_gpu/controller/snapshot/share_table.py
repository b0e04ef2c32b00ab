"""Publish to job_submit.lua whether sharing is available, and the number of shards for each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareTable:
    """The lines of a snapshot about jobs that share GPUs (docs/contracts.md, section 4)."""

    shards_per_gpu: int
    shares: Mapping[str, int]
    """Number of shards by key; keys are in the form that job_submit.lua uses."""

    def lines(self) -> Iterator[str]:
        """Yield a line that declares sharing available, and one line for each key."""
        yield f"colocation {self.shards_per_gpu}"
        for key, shards in sorted(self.shares.items()):
            yield f"share {key} {shards}"
