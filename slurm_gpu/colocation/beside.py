"""How fast applications run side by side on one GPU: relative to alone, 1 at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

Beside = tuple[int, tuple[int, ...]]
"""An application, and those that ran beside it in ascending order: (0, (1, 1)) is 0 beside two of 1."""


def views_of(group: Sequence[int]) -> Iterator[Beside]:
    """Each member of a group in its order, with those beside it."""
    for place, one in enumerate(group):
        yield one, tuple(sorted((*group[:place], *group[place + 1 :])))


class Speeds(Protocol):
    """A pure function of who runs together; applications are indices into a list of profiles."""

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Each one's speed, in their order: 1 as fast as alone. All 0 where they cannot run together."""
        ...


def beside_all(pairwise: Sequence[float]) -> float:
    """The speed beside several, from the speeds beside each of them alone (none of them 0).

    The time that each one adds to a unit of work is added up: under time slicing, with a share for every
    process that has work, this is exact; where the sum of use is below 1, it is on the safe side.
    """
    return 1 / (1 + sum(1 / speed - 1 for speed in pairwise))
