"""Decide whether two jobs may share a GPU for a trial, which measures their unknown speeds.

A failed trial costs time: the job that started last restarts, and the other one has been slowed down. A trial
therefore starts only if the time that sharing likely saves exceeds the time that a failure likely costs, and
only if each job that keeps its progress stays within the cap. The cap applies to whole runs, so a job that
has already lost time can lose less in a trial. slurm-gpuctld and the benchmarks
(bench/colocation_trial_belief.py) use these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.speeds.groups import end_times_s

# Confidence of the one-sided intervals of speeds.
CONFIDENCE = 0.95
# A job without any progress in a trial may exceed the permitted slowdown by half: 1.15 under a cap of 1.10.
_AT_WORST = 1.5
# Tolerance for rounding: slowdowns exactly at the cap pass.
_JUST_MORE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class TrialRules:
    """The rules for trials of pairs under a cap on the slowdown of each job's whole run."""

    cap: float

    def may_try(
        self,
        members: Sequence[Member],
        speeds: Sequence[float],
        lowest: Sequence[float],
        chance: float,
        trial_s: float,
    ) -> bool:
        """Return whether two jobs with unknown speeds may share a GPU for at most `trial_s` seconds.

        `speeds` and `lowest` contain each job's expected speed and the lower end of its interval. `chance` is
        the probability that both speeds stay within the cap. A job that had to leave a GPU before never
        takes part in a trial.
        """
        if len(members) != 2 or any(one.killed for one in members) or not all(speed > 0 for speed in speeds):
            return False
        saved_s = (sum(speeds) - 1) * min(one.left_s for one in members)
        if not chance * saved_s > (1 - chance) * trial_s:
            return False
        leaves = newcomer(members)
        # If a job ends during the trial, the newcomer does not restart, so its lost time counts too.
        may_end = any(one.left_s < trial_s for one in members)
        return all(
            self.can_bear(one, trial_s, low)
            for one, low in zip(members, lowest, strict=True)
            if one is not leaves or may_end
        )

    def can_bear(self, one: Member, seconds: float, low: float) -> bool:
        """Return whether a job can share its GPU for this many more seconds and then continue alone.

        At its lowest likely speed, its whole run must stay within the cap; without any progress, it must not
        exceed the cap by more than half of the permitted slowdown.
        """
        permitted_s = (self.cap - 1) * (one.done_s + one.left_s)
        return (
            one.lost_s + seconds * (1 - low) <= permitted_s
            and one.lost_s + seconds <= _AT_WORST * permitted_s
        )

    def are_kept(self, slowdowns: Sequence[float]) -> bool:
        """Return whether these slowdowns of whole runs are within the cap."""
        return all(one <= self.cap * _JUST_MORE for one in slowdowns)


def newcomer(members: Sequence[Member]) -> Member:
    """Return the job that leaves if a trial fails: the last to start or, in a tie, the shortest."""
    return min(members, key=lambda one: (one.ran_s, one.done_s + one.left_s))


def slowdowns(
    members: Sequence[Member], speeds_of: Callable[[tuple[int, ...]], Sequence[float]]
) -> list[float]:
    """Return the slowdown of each job's whole run if no further job joins.

    `speeds_of` takes the indices of the jobs that are still running, and returns their speeds.
    """
    ends_s = end_times_s([one.left_s for one in members], speeds_of)
    return [
        (one.done_s + one.lost_s + end_s) / (one.done_s + one.left_s)
        for one, end_s in zip(members, ends_s, strict=True)
    ]
