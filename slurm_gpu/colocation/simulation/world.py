"""Define the true values of a simulation: the speeds of applications that run together, and their memory.

A planner does not receive these values; it uses its `planner.Belief`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_gpu.colocation.co_runner_views import Speeds
from slurm_gpu.colocation.profiles.profile import ApplicationProfile


class World(Protocol):
    """One GPU model and the behaviour of applications on it; all methods are pure functions."""

    @property
    def profiles(self) -> Sequence[ApplicationProfile]:
        """Return the profiles of the applications, by index; they describe applications that run alone."""
        ...

    @property
    def capacity_mib(self) -> float:
        """Return the memory of one GPU."""
        ...

    def speeds(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        """Return the speed of each (application, phase) when all run together, relative to running alone.

        Values above 1 count as 1. All values are 0 if the applications cannot run together for a reason other
        than memory.
        """
        ...


@dataclass(frozen=True)
class TableWorld:
    """A world in which speeds depend on applications but not on phases.

    The speeds come from a pair table or another source. An application with unknown memory (None) takes none;
    a speed of 0 means that applications cannot run together.
    """

    profiles: Sequence[ApplicationProfile]
    table: Speeds
    capacity_mib: float = math.inf

    def speeds(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        """See World."""
        return self.table.together(tuple(application for application, _ in running))
