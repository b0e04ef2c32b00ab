"""Limit the number of jobs that are noticeably slower than when they run alone.

Under a cap, at most a fraction of all jobs may be slowed down noticeably. A group is admitted only if, at the
assumed speeds, the number of slowed jobs remains within this limit. Whether an ended job was slowed is
determined by the duration of its run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slurm_gpu.colocation.planner import Belief, Member, Planner, PlannerView, Start
from slurm_gpu.colocation.planners.history import NOTICED, StartHistory

_NOTHING_S = 1e-6


class SlowedJobs:
    """Counts the slowed jobs of all GPUs; must receive every view before a decision is made."""

    def __init__(self, belief: Belief, fraction: float) -> None:
        self._belief, self._fraction = belief, fraction
        self._is_limited = math.isfinite(belief.cap) and fraction < 1
        self._history = StartHistory()
        self.running: list[tuple[Member, ...]] = []
        """Running jobs by GPU, including those that start now."""
        self._lost_s: dict[int, float] = {}
        """The time that each running job has lost to co-runners so far."""
        self._allowed = 0
        """Number of jobs that may be slowed down, in addition to those that already are."""

    def update(self, view: PlannerView) -> None:
        """Count the jobs that ended since the last view, and those that run now."""
        self.running = [gpu.running for gpu in view.gpus]
        if not self._is_limited:
            return
        self._history.update(view)
        elapsed_s = [one for some in self._history.elapsed_s(view) for one in some]
        here = [one for some in self.running for one in some]
        self._lost_s = {one.job: ran_s - one.done_s for one, ran_s in zip(here, elapsed_s, strict=True)}
        n = len(view.waiting) + len(here) + self._history.ended
        self._allowed = int(self._fraction * n) - self._history.slowed - sum(map(self._is_slowed, here))

    def may(self, members: Sequence[Member]) -> bool:
        """Return whether the number of slowed jobs stays within the limit if these jobs share a GPU."""
        if not self._is_limited:
            return True
        n = self._n_slowed(members)
        if n == 0:
            return True
        here = {one.job for one in members}
        others = (some for some in self.running if here.isdisjoint(one.job for one in some))
        return n + sum(map(self._n_slowed, others)) <= self._allowed

    def _n_slowed(self, members: Sequence[Member]) -> int:
        """Return how many of these jobs are not slowed down yet, but will be if no further job joins."""
        left_s, here, now_s, n = [one.left_s for one in members], list(range(len(members))), 0.0, 0
        while here:
            speeds = self._belief.speeds(tuple([members[at].application for at in here]))
            if not all(speed > 0 for speed in speeds):
                return n + len(here)
            step_s, first = min((left_s[at] / speed, at) for at, speed in zip(here, speeds, strict=True))
            now_s += step_s
            for at, speed in zip(here, speeds, strict=True):
                left_s[at] -= step_s * speed
            here.remove(first)
            one = members[first]
            n += self._is_slowed(one, now_s - one.left_s) and not self._is_slowed(one)
        return n

    def _is_slowed(self, one: Member, more_s: float = 0.0) -> bool:
        """Return whether a job is slowed down noticeably if it loses this much more time."""
        lost_s = self._lost_s.get(one.job, 0.0) + more_s
        return lost_s > (NOTICED - 1) * (one.done_s + one.left_s) + _NOTHING_S


class _Sparing:
    """A planner.Belief that excludes sharing if it would slow down too many jobs."""

    def __init__(self, belief: Belief, slowed: SlowedJobs) -> None:
        self._belief, self._slowed = belief, slowed
        self.most_together, self.cap = belief.most_together, belief.cap
        self.speeds, self.fits, self.at_worst_s = belief.speeds, belief.fits, belief.at_worst_s

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief."""
        return self._belief.may_share(members) and self._slowed.may(members)


class MostSpared:
    """A planner.Planner that wraps another planner, with a belief that respects the limit."""

    def __init__(self, make: Callable[[Belief], Planner], belief: Belief, fraction: float) -> None:
        self._slowed = SlowedJobs(belief, fraction)
        self._inner = make(_Sparing(belief, self._slowed))
        self.name = self._inner.name

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Return the decision of the wrapped planner, up to the first start that exceeds the limit."""
        self._slowed.update(view)
        waiting = {one.job: one for one in view.waiting}
        starts: list[Start] = []
        for start in self._inner.choose(view):
            together = (*self._slowed.running[start.gpu], *(waiting[job] for job in start.jobs))
            if starts and not self._slowed.may(together):
                break
            self._slowed.running[start.gpu] = together
            starts.append(start)
        return starts
