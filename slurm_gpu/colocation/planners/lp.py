"""Follows the linear program: who runs together longest in the best times, as long as they are followed.

The program (`bound.py`) is solved anew at each event for what is left. Its times are no schedule: a job that
is to run beside several others does so one after the other, in the order of these times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from slurm_gpu.colocation.bound import TimedSet, best_times
from slurm_gpu.colocation.planner import Belief, Member, Start, View
from slurm_gpu.colocation.planners.decision import LEAST_GAIN, Decision, gain

_MOST_WAITING = 128
"""So many are looked at, by submission."""
_SHORTEST_S = 1e-6
"""Less time together than this is none."""


class LinearProgram:
    """See Planner."""

    name = "lp"

    def __init__(self, belief: Belief, *, least_gain: float = LEAST_GAIN) -> None:
        """`least_gain`: see LEAST_GAIN."""
        self._belief, self._least_gain = belief, least_gain

    def choose(self, view: View) -> Sequence[Start]:
        """On each GPU whoever is to be longest with those that are there; nobody if they are to be alone."""
        decision = Decision(view, self._belief)
        if not decision.waiting or not (decision.idle or decision.shareable):
            return []
        times = self._times(decision, view.waiting[:_MOST_WAITING])
        for gpu in decision.shareable:
            here = {one.job for one in decision.running[gpu]}
            for members in times:
                jobs = {one.job for one in members}
                if here < jobs and jobs - here <= decision.waiting.keys():
                    decision.start(gpu, *(one for one in members if one.job not in here))
                    break
        while decision.waiting and decision.idle:
            decision.start(decision.idle[0], *self._first(decision, times))
        return decision.starts

    def _first(self, decision: Decision, times: Sequence[tuple[Member, ...]]) -> tuple[Member, ...]:
        """Who begins on an idle GPU: a set before one alone, which can still take in others."""
        for members in times:
            if len(members) > 1 and {one.job for one in members} <= decision.waiting.keys():
                return members
        return (max(decision.waiting.values(), key=lambda one: one.left_s),)

    def _times(self, decision: Decision, waiting: Sequence[Member]) -> list[tuple[Member, ...]]:
        """Who runs together in the best times, the longest first."""
        members = [*waiting, *(one for gpu in decision.running for one in gpu)]
        sets = list(self._sets(members, decision))
        _, seconds = best_times(
            np.array([one.left_s for one in members]), np.arange(len(members)), sets, np.zeros(len(members)),
            len(decision.running),
        )  # fmt: skip
        order = np.argsort(-seconds, kind="stable")
        return [
            tuple(members[one] for one in sets[at][0]) for at in order[: int((seconds > _SHORTEST_S).sum())]
        ]

    def _sets(self, members: Sequence[Member], decision: Decision) -> Iterator[TimedSet]:
        """Each alone, and those who may run together and get more done."""
        gpu_of = {one.job: gpu for gpu, running in enumerate(decision.running) for one in running}
        for n in range(1, max(self._belief.most_together, 1) + 1):
            for chosen in combinations(range(len(members)), n):
                group = [members[one] for one in chosen]
                if len({gpu_of[one.job] for one in group if one.job in gpu_of}) > 1:
                    continue
                pays = n == 1 or gain(self._belief, group[:1], group[1:]) > self._least_gain
                if pays and self._belief.may_share(group):
                    yield chosen, self._belief.speeds(tuple(one.application for one in group))
