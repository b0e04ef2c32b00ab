"""Choose pairs at each event by maximum weight matching; the weight of a pair is the time that it saves.

Based on Muri: Zhao et al., "Multi-Resource Interleaving for Deep Learning Training" (SIGCOMM 2022). Muri
repeats the matching (Edmonds' blossom algorithm) to form larger groups. Here each running pair is a vertex,
and so is each job that runs alone. A pair accepts a third job if this is expected to save time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import networkx as nx

from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.decision import LEAST_GAIN, PlannerDecision
from slurm_gpu.colocation.planners.rollout import Rollout

# Number of jobs that are matched at a time, in the order of submission: the cost is cubic.
_MOST_WAITING = 128
# Savings are integer multiples of this unit, which makes the matching exact.
_UNIT_S = 1e-3


class Blossom:
    """See Planner."""

    name = "blossom"

    def __init__(self, belief: Belief) -> None:
        self._belief = belief

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Start the partners of running jobs, then fill idle GPUs with the longest pairs and single jobs."""
        decision = PlannerDecision(view, self._belief)
        if not decision.waiting or not (decision.idle or decision.shareable):
            return []
        waiting = view.waiting[:_MOST_WAITING]
        savings = self._savings(decision, waiting)
        matched = {frozenset(edge) for edge in nx.max_weight_matching(_graph(savings))}
        pairs = sorted((saved, pair) for pair, saved in savings.items() if frozenset(pair) in matched)
        for _, (one, two) in pairs:
            if one < 0:
                decision.start(-one - 1, waiting[two])
        self._fill(decision, waiting, [(one, two) for _, (one, two) in pairs if one >= 0])
        return decision.starts

    def _savings(self, decision: PlannerDecision, waiting: Sequence[Member]) -> dict[tuple[int, int], int]:
        """Return the time in _UNIT_S that each pair saves, if it saves any.

        A pair consists of two waiting jobs, or of a GPU and a waiting job. GPUs are numbered -1, -2 and so
        on.
        """
        empty = len(decision.running)
        running = [*decision.running, ()]
        elapsed_s = [[0.0] * len(gpu) for gpu in running]
        rollout = Rollout(self._belief, waiting, running, elapsed_s, LEAST_GAIN)
        savings = {}
        for gpu in decision.shareable:
            alone_s = rollout.end_s(gpu, [])
            for one, member in enumerate(waiting):
                if rollout.starts(gpu, [one]):
                    savings[-gpu - 1, one] = alone_s + member.left_s - rollout.end_s(gpu, [one])
        for one, two in combinations(range(len(waiting)), 2):
            alone_s = waiting[one].left_s + waiting[two].left_s
            savings[one, two] = alone_s - rollout.end_s(empty, [one, two])
        return {pair: units for pair, saved_s in savings.items() if (units := round(saved_s / _UNIT_S)) > 0}

    def _fill(
        self, decision: PlannerDecision, waiting: Sequence[Member], pairs: list[tuple[int, int]]
    ) -> None:
        """Fill idle GPUs with pairs and single jobs, longest first; `pairs` are sorted by saved time."""
        paired = {one for pair in pairs for one in pair}
        groups = [
            [one] for one in range(len(waiting)) if one not in paired and waiting[one].job in decision.waiting
        ]
        for at, (one, two) in enumerate(pairs):
            if len(groups) + len(pairs) - at < len(decision.idle):
                groups += [[one], [two]]
            else:
                groups.append([one, two])
        groups.sort(key=lambda group: -sum(waiting[one].left_s for one in group))
        for gpu, group in zip(decision.idle, groups, strict=False):
            decision.start(gpu, *(waiting[one] for one in group))


def _graph(savings: Mapping[tuple[int, int], int]) -> nx.Graph:
    graph: nx.Graph = nx.Graph()
    graph.add_weighted_edges_from((one, two, saved) for (one, two), saved in savings.items())
    return graph
