"""Track the time that sharing has gained, and risk no more than this time.

Some predicted speeds are far off. A group is a risk if, at the lowest likely speeds, it would take longer
than running its jobs one after the other. A risk is taken only if sharing has already gained at least the
time at risk. If all jobs wait from the beginning for one GPU, the makespan is then at most that of running
them one after the other. This guarantee requires that no job is slower than its lowest likely speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_gpu.colocation.planner import Belief, Member, Planner, PlannerView, Start

_NOTHING_S = 1e-6


class Account:
    """The account of all GPUs; it must receive every view before a decision is made."""

    def __init__(self, belief: Belief) -> None:
        self._belief = belief
        self.gained_s = 0.0
        """Completed work, in seconds of running alone, minus busy time, summed over all GPUs."""
        self._running: dict[object, tuple[float, tuple[Member, ...]]] = {}
        """The time of each GPU's last view, and the jobs that were running on the GPU."""

    def update(self, view: PlannerView) -> None:
        """Update the account with the jobs that ran since the last view.

        A job that no longer appears has completed its work; a job that waits again has lost the work that it
        had completed. GPUs that this view lacks are updated by the next view that contains them.
        """
        there = {one.job: one.left_s for gpu in view.gpus for one in gpu.running}
        waits = {one.job for one in view.waiting}
        for at, gpu in enumerate(view.gpus):
            key = at if gpu.name is None else gpu.name
            seen_s, running = self._running.get(key, (view.now_s, ()))
            if running:
                self.gained_s -= view.now_s - seen_s
            for one in running:
                left_s = one.left_s + one.done_s if one.job in waits else there.get(one.job, 0.0)
                self.gained_s += one.left_s - left_s
            self._running[key] = view.now_s, gpu.running

    def may(self, members: Sequence[Member]) -> bool:
        """Return whether these jobs, together with the groups on other GPUs, risk at most the time gained."""
        stake_s = self._stake_s(members)
        if stake_s <= _NOTHING_S:
            return True
        here = {one.job for one in members}
        others = (some for _, some in self._running.values() if here.isdisjoint(one.job for one in some))
        return stake_s + sum(max(self._stake_s(some), 0.0) for some in others) <= self.gained_s

    def _stake_s(self, members: Sequence[Member]) -> float:
        """Return how much longer these jobs may take together than one after the other."""
        if len(members) < 2:
            return 0.0
        return self._belief.at_worst_s(members) - sum(one.left_s for one in members)


class _Staked:
    """A planner.Belief that excludes sharing if it might lose more time than sharing has gained."""

    def __init__(self, belief: Belief, account: Account) -> None:
        self._belief, self._account = belief, account
        self.most_together, self.cap = belief.most_together, belief.cap
        self.speeds, self.fits, self.at_worst_s = belief.speeds, belief.fits, belief.at_worst_s

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief."""
        return self._belief.may_share(members) and self._account.may(members)


class NeverSlower:
    """A planner.Planner that wraps another planner, with a belief that respects the account."""

    def __init__(self, make: Callable[[Belief], Planner], belief: Belief) -> None:
        self._account = Account(belief)
        self._inner = make(_Staked(belief, self._account))
        self.name = self._inner.name

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Update the account, and return the decision of the wrapped planner."""
        self._account.update(view)
        return self._inner.choose(view)
