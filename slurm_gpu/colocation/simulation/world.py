"""What is true in the simulator: how fast applications really run side by side, and what memory they take.

A planner never sees it; it has a `planner.Belief`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_gpu.colocation.beside import Speeds
from slurm_gpu.colocation.profiles.profile import ApplicationProfile


class World(Protocol):
    """One model of GPU, and what applications do on it. Pure functions."""

    @property
    def profiles(self) -> Sequence[ApplicationProfile]:
        """Of the applications, by index: their phases, and what each takes while it has a GPU for itself."""
        ...

    @property
    def capacity_mib(self) -> float:
        """Of one GPU."""
        ...

    def speeds(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        """Each one's speed, relative to alone, while these run together: (application, phase) each.

        What is above 1 counts as 1. All 0 where they cannot run together for a reason that their memory
        does not show.
        """
        ...


@dataclass(frozen=True)
class TableWorld:
    """Speeds that no phase changes: of a pair table, or whatever else gives them by application.

    Applications whose memory nobody knows (None) take none here; which of them cannot run together, the
    speeds say.
    """

    profiles: Sequence[ApplicationProfile]
    table: Speeds
    capacity_mib: float = math.inf

    def speeds(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        """See World."""
        return self.table.together(tuple(application for application, _ in running))
