"""At each moment the two that get most done together, and whoever adds most beside those that run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from slurm_gpu.colocation.planner import Belief, Member, Start, View
from slurm_gpu.colocation.planners.decision import LEAST_GAIN, Decision, gain


class Greedy:
    """See Planner. Looks at speeds alone, of equal ones at who has most to do, and at nothing to come."""

    name = "greedy"

    def __init__(self, belief: Belief, *, least_gain: float = LEAST_GAIN) -> None:
        """`least_gain`: see LEAST_GAIN."""
        self._belief, self._least_gain = belief, least_gain

    def choose(self, view: View) -> Sequence[Start]:
        """Idle GPUs first: shared at once only where more wait than there are idle ones."""
        decision = Decision(view, self._belief)
        while decision.waiting and decision.idle:
            decision.start(decision.idle[0], *self._first(decision))
        while (found := self._partner(decision)) is not None:
            decision.start(*found)
        return decision.starts

    def _first(self, decision: Decision) -> tuple[Member, ...]:
        waiting = list(decision.waiting.values())
        best: tuple[Member, ...] = (max(waiting, key=lambda one: one.left_s),)
        if len(waiting) <= len(decision.idle):
            return best
        most = (self._least_gain, 0.0)
        for pair in combinations(waiting, 2):
            value = (gain(self._belief, pair[:1], pair[1:]), pair[0].left_s + pair[1].left_s)
            if value[0] > self._least_gain and value > most and self._belief.may_share(pair):
                best, most = pair, value
        return best

    def _partner(self, decision: Decision) -> tuple[int, Member] | None:
        best, most = None, (self._least_gain, 0.0)
        for gpu in decision.shareable:
            for member in decision.waiting.values():
                value = (gain(self._belief, decision.running[gpu], [member]), member.left_s)
                if value[0] > self._least_gain and value > most and decision.may_join(gpu, member):
                    best, most = (gpu, member), value
        return best
