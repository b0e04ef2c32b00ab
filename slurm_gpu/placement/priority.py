"""Priority of waiting jobs by their scale and how long they wait: points that Slurm adds to its own priority.

A large job waits until many GPUs are free at once, while small ones pass by; so that each scale waits about
as long as it should, the points of a job grow by the hour, at a rate of its scale. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu.placement.zones import JobScale

_STEPS = 50
"""Points grow in so many steps at most: each value that jobs have is a call of slurmctld."""


@dataclass(frozen=True, slots=True)
class PriorityWeights:
    """What an hour of waiting is worth, in points of Slurm's priority."""

    per_hour: Mapping[JobScale, float]
    """Of a scale that is not named nothing."""
    most: int
    """However long a job waits."""

    @property
    def step(self) -> int:
        """All points are multiples of it."""
        return max(1, self.most // _STEPS)


def points(weights: PriorityWeights, scale: JobScale, waited_s: float) -> int:
    """What such a job has earned; never less than before while weights stay as they are."""
    earned = weights.per_hour.get(scale, 0.0) * max(0.0, waited_s) / 3600
    return int(min(earned, weights.most) // weights.step) * weights.step


def is_earned(weights: PriorityWeights, now: int, earned: int) -> bool:
    """Whether a SiteFactor that a job has may be of these weights; else somebody set it by hand.

    Told by the value alone, so that nothing need be remembered of thousands of jobs: one that earned what it
    has had all values below it before.
    """
    return 0 <= now <= earned and now % weights.step == 0
