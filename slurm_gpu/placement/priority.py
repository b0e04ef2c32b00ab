"""Compute the priority points of waiting jobs from their scale and waiting time.

Slurm adds the points to its own priority. A large job waits until many GPUs are free at the same time, while
small jobs start before it. To balance the waits, points grow at an hourly rate that depends on the job's
scale. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu.placement.zones import JobScale

# Maximum number of steps in which points grow, since each distinct value costs a call to slurmctld.
_STEPS = 50


@dataclass(frozen=True, slots=True)
class PriorityWeights:
    """The value of an hour of waiting, in points of Slurm's priority."""

    per_hour: Mapping[JobScale, float]
    """Points per hour of waiting; jobs of a scale that is not listed earn no points."""
    most: int
    """Maximum points of a job, however long it waits."""

    @property
    def step(self) -> int:
        """The number of which all points are multiples."""
        return max(1, self.most // _STEPS)


def points(weights: PriorityWeights, scale: JobScale, waited_s: float) -> int:
    """Return the points earned; they never decrease while the weights do not change."""
    earned = weights.per_hour.get(scale, 0.0) * max(0.0, waited_s) / 3600
    return int(min(earned, weights.most) // weights.step) * weights.step


def is_earned(weights: PriorityWeights, now: int, earned: int) -> bool:
    """Return whether a job's SiteFactor may come from these weights; otherwise an operator set it.

    The check uses only the value and needs no stored state for thousands of jobs. A job passes through all
    values below the one that it has earned.
    """
    return 0 <= now <= earned and now % weights.step == 0
