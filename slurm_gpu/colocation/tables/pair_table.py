"""Provide measured speeds to simulators and planners: a matrix of pairs, and larger groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.co_runner_views import CoRunnerView, speed_with_all, views_of


class PairTable:
    """Speeds of pairs; the speeds of larger groups that were not measured are extrapolated from pairs.

    In `speeds` (n, n), [i, j] is the speed of i with j. It is NaN if unmeasured, and 0 in both directions if
    i and j cannot run together. `larger` contains measured speeds in larger groups.
    """

    def __init__(
        self,
        names: Sequence[str],
        speeds: NDArray[np.float64],
        larger: Mapping[CoRunnerView, float] | None = None,
    ) -> None:
        n = len(names)
        if speeds.shape != (n, n):
            raise ValueError(f"{n} applications must have speeds of shape {(n, n)}, not {speeds.shape}")
        known = speeds[~np.isnan(speeds)]
        if not ((known >= 0) & (known <= 1)).all():
            raise ValueError("speeds with co-runners must be from 0 to 1, relative to running alone")
        if ((speeds == 0) != (speeds.T == 0)).any():
            raise ValueError("a pair that cannot run together must have speed 0 in both directions")
        self.names, self.speeds, self.larger = tuple(names), speeds, dict(larger or {})

    def together(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """See Speeds; raise KeyError with both names if a pair is unknown."""
        if len(applications) == 1:
            return (1.0,)
        measured = self._measured(applications)
        if measured is not None:
            return measured
        rows = [
            [self._pair(i, j) for b, j in enumerate(applications) if b != a]
            for a, i in enumerate(applications)
        ]
        if any(speed == 0 for row in rows for speed in row):
            return (0.0,) * len(applications)
        return tuple(speed_with_all(row) for row in rows)

    def _measured(self, applications: tuple[int, ...]) -> tuple[float, ...] | None:
        """Return the speeds of three or more applications together; None if any was not measured."""
        if not self.larger or len(applications) < 3:
            return None
        found = [self.larger.get(view) for view in views_of(applications)]
        known = tuple(speed for speed in found if speed is not None)
        return known if len(known) == len(found) else None

    def _pair(self, i: int, j: int) -> float:
        speed: float = self.speeds.item(i, j)
        if math.isnan(speed):
            raise KeyError(f"{self.names[i]} with {self.names[j]}")
        return speed
