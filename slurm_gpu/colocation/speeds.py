"""How fast applications run side by side on one GPU: relative to alone, 1 at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Speeds(Protocol):
    """A pure function of who runs together; applications are indices into a list of profiles."""

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Each one's speed, in their order: 1 as fast as alone. All 0 where they cannot run together."""
        ...


class PairTable:
    """Speeds of pairs; three and more are extrapolated from their pairs.

    `speeds` is (n, n): [i, j] the speed of i beside j; NaN where nobody measured, 0 (both ways) where they
    cannot run together.
    """

    def __init__(self, names: Sequence[str], speeds: NDArray[np.float64]) -> None:
        n = len(names)
        if speeds.shape != (n, n):
            raise ValueError(f"{n} applications have speeds of shape {(n, n)}, not {speeds.shape}")
        known = speeds[~np.isnan(speeds)]
        if not ((known >= 0) & (known <= 1)).all():
            raise ValueError("speeds beside others are from 0 to 1, of the speed alone")
        if ((speeds == 0) != (speeds.T == 0)).any():
            raise ValueError("a pair that cannot run together has speed 0 both ways")
        self.names, self.speeds = tuple(names), speeds

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """See Speeds. Raises KeyError with both names where a pair is not known."""
        if len(applications) == 1:
            return (1.0,)
        rows = [
            [self._pair(i, j) for b, j in enumerate(applications) if b != a]
            for a, i in enumerate(applications)
        ]
        if any(speed == 0 for row in rows for speed in row):
            return (0.0,) * len(applications)
        return tuple(beside_all(row) for row in rows)

    def _pair(self, i: int, j: int) -> float:
        speed = float(self.speeds[i, j])
        if np.isnan(speed):
            raise KeyError(f"{self.names[i]} beside {self.names[j]}")
        return speed


def beside_all(pairwise: Sequence[float]) -> float:
    """The speed beside several, from the speeds beside each of them alone (none of them 0).

    The time that each one adds to a unit of work is added up: under time slicing, with a share for every
    process that has work, this is exact; where the sum of use is below 1, it is on the safe side.
    """
    return 1 / (1 + sum(1 / speed - 1 for speed in pairwise))
