"""Pack jobs onto GPUs by their use of resources, as Tetris packs tasks onto machines.

Based on Grandl et al., "Multi-Resource Packing for Cluster Schedulers" (SIGCOMM 2014). Among the jobs whose
demand fits the free resources, the planner starts the one whose demand is best aligned with them (dot
product). Jobs with less remaining work are preferred; both criteria are brought to the same scale. Memory
must fit at every moment. Interference is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.decision import PlannerDecision
from slurm_gpu.colocation.planners.demand import Floats, demands
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

_ROUNDING = 1e-9


class Tetris:
    """See Planner."""

    name = "tetris"

    def __init__(self, belief: Belief, profiles: Sequence[ApplicationProfile], capacity_mib: float) -> None:
        self._belief, self._demands = belief, demands(profiles, capacity_mib)

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Start one job at a time, in the best combination of a job and a GPU."""
        decision = PlannerDecision(view, self._belief)
        while (found := self._best(decision)) is not None:
            decision.start(*found)
        return decision.starts

    def _best(self, decision: PlannerDecision) -> tuple[int, Member] | None:
        waiting = list(decision.waiting.values())
        places = [*decision.idle, *decision.shareable]
        if not waiting or not places:
            return None
        asked = self._demands[[one.application for one in waiting]]
        free = np.array([1.0 - self._used(decision.running[gpu]) for gpu in places]).clip(0.0)
        aligned = free @ asked.T
        work = np.array([one.left_s for one in waiting]) * asked.sum(axis=1)
        mean_work = work.mean()
        score = aligned - (aligned.mean() / mean_work * work if mean_work > 0 else 0.0)
        uses = asked[:, :-1]
        room = np.all(uses[None] <= free[:, None, :-1] + _ROUNDING, axis=2)
        for flat in np.argsort(-score, axis=None, kind="stable"):
            at, one = divmod(int(flat), len(waiting))
            gpu, member = places[at], waiting[one]
            if not decision.running[gpu] or (room[at, one] and decision.may_join(gpu, member)):
                return gpu, member
        return None

    def _used(self, running: Sequence[Member]) -> Floats:
        used: Floats = self._demands[[one.application for one in running]].sum(axis=0)
        return used
