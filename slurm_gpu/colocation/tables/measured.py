"""Define the measured speeds of applications that share one GPU model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_gpu.colocation.co_runner_views import CoRunnerView, views_of

if TYPE_CHECKING:  # slurm-gpuctld writes learned speeds as a table on hosts that may lack numpy
    from slurm_gpu.colocation.tables.pair_table import PairTable

# Minimum speed other than 0; a speed of 0 means that the applications cannot run together.
LEAST_SPEED = 1e-6

# Keys of slurm-gpuctld have up to 481 bytes: the user and the job name have up to 80 bytes each, and each
# byte may be encoded as three.
LONGEST_NAME = 512


@dataclass(frozen=True)
class Measured:
    """Speeds of applications with their co-runners; applications are indices into `names`.

    Raise ValueError naming the applications if a value is invalid.
    """

    gpu_model: str
    names: tuple[str, ...]
    alone_per_s: tuple[float | None, ...]
    """Steps, or another unit of progress, per second alone on the GPU; None if unknown."""
    speeds: Mapping[CoRunnerView, float] = field(repr=False)
    """Speeds relative to running alone, from 0 to 1; all speeds of a group that cannot run together are 0."""

    def __post_init__(self) -> None:
        for name in (self.gpu_model, *self.names):
            if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
                raise ValueError(f"the name {name[:40]!r} must have 1 to {LONGEST_NAME} printable characters")
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"{twice!r} occurs twice")
        if len(self.alone_per_s) != len(self.names):
            raise ValueError(
                f"{len(self.names)} applications have {len(self.alone_per_s)} values of alone_per_s"
            )
        for name, alone in zip(self.names, self.alone_per_s, strict=True):
            if alone is not None and not 0 < alone < float("inf"):
                raise ValueError(f"{name!r} alone: {alone} must be more than 0 and finite")
        for (one, others), speed in self.speeds.items():
            self._check(one, others, speed)

    def _check(self, one: int, others: tuple[int, ...], speed: float) -> None:
        what = f"{self.names[one]!r} with {', '.join(repr(self.names[other]) for other in others)}"
        if not others:
            raise ValueError(f"{self.names[one]!r} without co-runners must have the speed 1")
        if list(others) != sorted(others):
            raise ValueError(f"{what}: co-runners must be in ascending order")
        if not 0 <= speed <= 1:
            raise ValueError(f"{what}: speed {speed} must be from 0 to 1, relative to running alone")
        if 0 < speed < LEAST_SPEED:
            raise ValueError(
                f"{what}: speed {speed} must be 0 (cannot run together) or from {LEAST_SPEED:f} to 1"
            )
        if speed == 0:
            group = (one, *others)
            for member, co_runners in views_of(group):
                if self.speeds.get((member, co_runners)) != 0:
                    raise ValueError(
                        f"{what}: speed 0 means that they cannot run together, so the speed of "
                        f"{self.names[member]!r} must also be 0"
                    )

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Return each measured group once, in ascending order of size."""
        found = {tuple(sorted((one, *others))) for one, others in self.speeds}
        return sorted(found, key=lambda group: (len(group), group))

    @property
    def lacking(self) -> list[tuple[int, int]]:
        """Return the pairs that were not measured, including pairs of an application with itself."""
        places = range(len(self.names))
        return [(one, other) for one in places for other in places if (one, (other,)) not in self.speeds]

    def together(self, group: Sequence[int]) -> tuple[float | None, ...]:
        """Return the speed of each application in the order of `group`; None if unmeasured."""
        return tuple(self.speeds.get((one, others)) for one, others in views_of(group))

    def table(self) -> PairTable:
        """Return the table of all pairs and the measured larger groups, for simulators and planners."""
        import numpy as np

        from slurm_gpu.colocation.tables.pair_table import PairTable

        pairs = np.full((len(self.names), len(self.names)), np.nan)
        larger = {}
        for (one, others), speed in self.speeds.items():
            if len(others) == 1:
                pairs[one, others[0]] = speed
            else:
                larger[one, others] = speed
        return PairTable(self.names, pairs, larger)
