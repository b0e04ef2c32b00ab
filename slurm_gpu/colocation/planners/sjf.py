"""Run the shortest job first, one job per GPU: the baseline without sharing."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.colocation.planner import PlannerView, Start


class ShortestFirst:
    """See Planner."""

    name = "sjf"

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Start the shortest waiting jobs, one on each idle GPU."""
        idle = (index for index, gpu in enumerate(view.gpus) if not gpu.running)
        shortest = sorted(view.waiting, key=lambda one: one.left_s)
        return [Start(gpu, (member.job,)) for gpu, member in zip(idle, shortest, strict=False)]
