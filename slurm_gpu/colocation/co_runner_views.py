"""Define the speeds of applications that share a GPU, relative to running alone (at most 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

# An application and its co-runners in ascending order: (0, (1, 1)) is application 0 with two jobs of
# application 1.
CoRunnerView = tuple[int, tuple[int, ...]]


def views_of(group: Sequence[int]) -> Iterator[CoRunnerView]:
    """Yield each member of a group in its order, with its co-runners."""
    for place, one in enumerate(group):
        yield one, tuple(sorted((*group[:place], *group[place + 1 :])))


class Speeds(Protocol):
    """The speeds of applications that run together: a function of their indices in a list of profiles."""

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the speed of each application, in the given order.

        1 is as fast as alone. All are 0 if they cannot run together.
        """
        ...


def speed_with_all(pairwise: Sequence[float]) -> float:
    """Return the speed with several co-runners from the speed with each of them alone (all above 0).

    The time that each co-runner adds to a unit of work is summed. Under time slicing, where every process
    with work gets a share, the result is exact; if the sum of their use is below 1, it is a lower bound.
    """
    return 1 / (1 + sum(1 / speed - 1 for speed in pairwise))
