"""Start the jobs that run together longest in the solution of a linear program.

The program (`bound.py`) is solved again at each event for the remaining work. The solution is not a schedule:
it can run one job with several others in turn. The planner starts the job with one of them at a time,
beginning with the longest pairing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import numpy as np

from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.bound import TimedSet, best_times
from slurm_gpu.colocation.planners.decision import LEAST_GAIN, PlannerDecision, gain

# Number of jobs that are considered, in the order of submission.
_MOST_WAITING = 128
# Sets of jobs that run together for a shorter time in the solution are ignored.
_SHORTEST_S = 1e-6


class LinearProgram:
    """See Planner."""

    name = "lp"

    def __init__(self, belief: Belief) -> None:
        self._belief = belief

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Start the jobs that run longest with the running jobs of shareable GPUs, then fill idle GPUs."""
        decision = PlannerDecision(view, self._belief)
        if not decision.waiting or not (decision.idle or decision.shareable):
            return []
        kinds = _Kinds(decision, view.waiting[:_MOST_WAITING])
        times = self._times(kinds, len(decision.running))
        for gpu in decision.shareable:
            here = Counter(kinds.of[one.job] for one in decision.running[gpu])
            for group in times:
                if here < group and (members := kinds.waiting_of(group - here)):
                    kinds.take(members)
                    decision.start(gpu, *members)
                    break
        while decision.waiting and decision.idle:
            members = self._first(decision, kinds, times)
            kinds.take(members)
            decision.start(decision.idle[0], *members)
        return decision.starts

    def _first(
        self, decision: PlannerDecision, kinds: _Kinds, times: Sequence[Counter[int]]
    ) -> tuple[Member, ...]:
        """Return the jobs to start on an idle GPU: a set from the solution or, failing that, the longest job.

        Other jobs can join a single job later.
        """
        for group in times:
            if group.total() > 1 and (members := kinds.waiting_of(group)):
                return members
        return (max(decision.waiting.values(), key=lambda one: one.left_s),)

    def _times(self, kinds: _Kinds, n_gpus: int) -> list[Counter[int]]:
        """Return the sets of kinds that run together in the solution, sorted by time in descending order."""
        sets = list(self._sets(kinds))
        n_alike = np.array([len(some) for some in kinds.members], dtype=np.float64)
        _, seconds = best_times(
            np.array([some[0].left_s for some in kinds.members]) * n_alike,
            np.arange(len(n_alike)),
            sets,
            np.zeros(len(n_alike)),
            n_gpus,
            n_alike,
        )
        order = np.argsort(-seconds, kind="stable")
        return [Counter(sets[at][0]) for at in order[: int((seconds > _SHORTEST_S).sum())]]

    def _sets(self, kinds: _Kinds) -> Iterator[TimedSet]:
        """Yield each kind alone, and the sets of kinds that may share a GPU and gain from sharing."""
        for n in range(1, max(self._belief.most_together, 1) + 1):
            for chosen in combinations_with_replacement(range(len(kinds.members)), n):
                group = kinds.some(chosen)
                if not group:
                    continue
                pays = n == 1 or gain(self._belief, group[:1], group[1:]) > LEAST_GAIN
                if pays and self._belief.may_share(group):
                    yield chosen, self._belief.speeds(tuple(one.application for one in group))


class _Kinds:
    """The kinds of jobs. Equal waiting jobs form one kind, and each running job is a kind of its own."""

    def __init__(self, decision: PlannerDecision, waiting: Sequence[Member]) -> None:
        alike: dict[tuple[int, float], list[Member]] = {}
        for one in waiting:
            alike.setdefault((one.application, one.left_s), []).append(one)
        self.members = list(alike.values())
        self._n_waiting = len(self.members)
        self._gpu: dict[int, int] = {}
        """The GPU of each running job, by its kind."""
        for gpu, running in enumerate(decision.running):
            for one in running:
                self._gpu[len(self.members)] = gpu
                self.members.append([one])
        self.of = {one.job: kind for kind, some in enumerate(self.members) for one in some}
        self._waits = [list(some) for some in self.members[: self._n_waiting]]

    def some(self, kinds: Sequence[int]) -> tuple[Member, ...]:
        """Return jobs of these kinds, or none if a kind has too few jobs or if they run on different GPUs."""
        if len({self._gpu[one] for one in kinds if one in self._gpu}) > 1:
            return ()
        wanted = Counter(kinds)
        if any(many > len(self.members[kind]) for kind, many in wanted.items()):
            return ()
        return tuple(one for kind, many in wanted.items() for one in self.members[kind][:many])

    def waiting_of(self, group: Counter[int]) -> tuple[Member, ...]:
        """Return waiting jobs of these kinds, or none if too few jobs of a kind are waiting."""
        if any(kind >= self._n_waiting or many > len(self._waits[kind]) for kind, many in group.items()):
            return ()
        return tuple(one for kind, many in group.items() for one in self._waits[kind][:many])

    def take(self, members: Sequence[Member]) -> None:
        """Mark these jobs as no longer waiting."""
        for one in members:
            kind = self.of.get(one.job)
            if kind is not None:
                self._waits[kind].remove(one)
