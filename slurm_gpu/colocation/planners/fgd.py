"""Place each job where it strands the smallest share of a GPU (fragmentation gradient descent).

Based on Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). A job's share of a GPU is its largest mean
use. Its memory demand is its peak use; memory must also fit at every moment. The free share of a GPU is
stranded for a job that needs a larger share, or more memory, than is free. Jobs start in the order of
submission; a job that does not fit does not delay the others. Interference is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.decision import PlannerDecision
from slurm_gpu.colocation.planners.demand import Floats, demands
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

_ROUNDING = 1e-9


class FragmentationGradient:
    """See Planner."""

    name = "fgd"

    def __init__(self, belief: Belief, profiles: Sequence[ApplicationProfile], capacity_mib: float) -> None:
        self._belief = belief
        demand = demands(profiles, capacity_mib)
        self._asked = np.column_stack([demand[:, :-1].max(axis=1), demand[:, -1]])
        """(applications, 2) required share and memory, as fractions of the whole GPU."""

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Place the jobs one after the other, each where it strands the smallest share."""
        decision = PlannerDecision(view, self._belief)
        mix = self._asked[[one.application for one in (*view.waiting, *_all(decision.running))]]
        for member in view.waiting:
            gpu = self._place(decision, member, mix)
            if gpu is not None:
                decision.start(gpu, member)
        return decision.starts

    def _place(self, decision: PlannerDecision, member: Member, mix: Floats) -> int | None:
        asked = self._asked[member.application]
        found, least = None, np.inf
        for gpu in [*decision.shareable, *decision.idle]:
            running = decision.running[gpu]
            free = 1.0 - self._asked[[one.application for one in running]].sum(axis=0)
            if running and ((asked > free + _ROUNDING).any() or not decision.may_join(gpu, member)):
                continue
            more = _stranded(free - asked, mix) - _stranded(free, mix)
            if more < least - _ROUNDING:
                found, least = gpu, more
        return found


def _all(running: Sequence[Sequence[Member]]) -> list[Member]:
    return [one for gpu in running for one in gpu]


def _stranded(free: Floats, mix: Floats) -> float:
    """Return the stranded share of a GPU, averaged over the jobs of the mix."""
    return float(max(free[0], 0.0) * (mix > free + _ROUNDING).any(axis=1).mean())
