"""Define the speed of an application that shares a GPU, relative to running alone (at most 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

# An application and its co-runners in ascending order: (0, (1, 1)) is application 0 with two jobs of
# application 1.
CoRunnerView = tuple[int, tuple[int, ...]]


def views_of(group: Sequence[int]) -> Iterator[CoRunnerView]:
    """Yield each member of a group with its co-runners, in the order of the group."""
    for place, one in enumerate(group):
        yield one, tuple(sorted((*group[:place], *group[place + 1 :])))


class Speeds(Protocol):
    """A source of the speeds of applications that run together.

    Applications are indices into a list of profiles.
    """

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the speed of each application, in the given order.

        An application with a speed of 1 is as fast as when it runs alone. If the applications cannot run
        together, all speeds are 0.
        """
        ...


def speed_with_all(pairwise: Sequence[float]) -> float:
    """Compute the speed with several co-runners from the speeds with each single co-runner (all above 0).

    The formula sums the time that each co-runner adds to a unit of work. Under time slicing, in which every
    process with work gets a share, the result is exact. If the utilisations of all processes sum to less than
    1, the result is a lower bound.
    """
    return 1 / (1 + sum(1 / speed - 1 for speed in pairwise))
