"""Describe speeds of applications that share a GPU, relative to running alone (at most 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

# An application and its co-runners in ascending order: (0, (1, 1)) is 0 with two of 1.
CoRunnerView = tuple[int, tuple[int, ...]]


def views_of(group: Sequence[int]) -> Iterator[CoRunnerView]:
    """Yield each member of a group in its order, with its co-runners."""
    for place, one in enumerate(group):
        yield one, tuple(sorted((*group[:place], *group[place + 1 :])))


class Speeds(Protocol):
    """The speeds of applications that run together: a pure function of indices into a list of profiles."""

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the speed of each, in their order: 1 is as fast as alone.

        All are 0 if they cannot run together.
        """
        ...


def speed_with_all(pairwise: Sequence[float]) -> float:
    """Return the speed with several co-runners from the speeds with each of them singly (all above 0).

    The result sums the time that each one adds to a unit of work. Under time slicing, with a share for every
    process that has work, this is exact; if the sum of use is below 1, it is a lower bound.
    """
    return 1 / (1 + sum(1 / speed - 1 for speed in pairwise))
