"""Start the two jobs that complete the most work together, or the job that adds the most to running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.decision import LEAST_GAIN, PlannerDecision, gain

# The additional work per second, and the remaining work, which decides between equal gains.
_Value = tuple[float, float]
_Partner = tuple[_Value, Member]


class Greedy:
    """See Planner. The planner prefers the greatest gain, then the most work, and does not look ahead."""

    name = "greedy"

    def __init__(self, belief: Belief) -> None:
        self._belief = belief

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Fill idle GPUs first, then add jobs to GPUs that are in use.

        An idle GPU receives two jobs only if there are more waiting jobs than idle GPUs.
        """
        decision = PlannerDecision(view, self._belief)
        while decision.waiting and decision.idle:
            decision.start(decision.idle[0], *self._first(decision))
        best: dict[int, _Partner | None] = {}
        while decision.waiting and (found := self._partner(decision, best)) is not None:
            decision.start(*found)
            del best[found[0]]
        return decision.starts

    def _first(self, decision: PlannerDecision) -> tuple[Member, ...]:
        waiting = list(decision.waiting.values())
        best: tuple[Member, ...] = (max(waiting, key=lambda one: one.left_s),)
        if len(waiting) <= len(decision.idle):
            return best
        most = (LEAST_GAIN, 0.0)
        gains: dict[tuple[int, int], float] = {}
        for pair in combinations(waiting, 2):
            one, other = pair
            applications = one.application, other.application
            more = gains.get(applications)
            if more is None:
                more = gains[applications] = gain(self._belief, pair[:1], pair[1:])
            if more < most[0]:
                continue
            value = more, one.left_s + other.left_s
            if more > LEAST_GAIN and value > most and self._belief.may_share(pair):
                best, most = pair, value
        return best

    def _partner(
        self, decision: PlannerDecision, best: dict[int, _Partner | None]
    ) -> tuple[int, Member] | None:
        """Return the best start over all GPUs; `best` caches the best start on each unchanged GPU."""
        most: tuple[_Value, int, Member] | None = None
        for gpu in decision.shareable:
            known = best.get(gpu)
            if gpu not in best or (known is not None and known[1].job not in decision.waiting):
                known = best[gpu] = self._partner_on(gpu, decision)
            if known is not None and (most is None or known[0] > most[0]):
                most = known[0], gpu, known[1]
        return None if most is None else most[1:]

    def _partner_on(self, gpu: int, decision: PlannerDecision) -> _Partner | None:
        best, most = None, (LEAST_GAIN, 0.0)
        gains: dict[int, float] = {}
        for member in decision.waiting.values():
            more = gains.get(member.application)
            if more is None:
                more = gains[member.application] = gain(self._belief, decision.running[gpu], [member])
            value = more, member.left_s
            if more > LEAST_GAIN and value > most and decision.may_join(gpu, member):
                best, most = (value, member), value
        return best
