"""Provide all planners that are not learned, and a planner that checks the decisions of another."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.colocation.planner import Belief, Planner, PlannerView, Start, wake_s
from slurm_gpu.colocation.planners.annealing import Annealing
from slurm_gpu.colocation.registry import PLANNERS, Setting
from slurm_gpu.colocation.simulation.world import World

NOT_LEARNED = ("sjf", "tetris", "fgd", "greedy", "blossom", "lp", "annealing")


def planners(world: World, belief: Belief, seed: int = 0) -> list[Planner]:
    """Return all planners that are not learned, with a short search."""
    return [made(name, world, belief, seed) for name in NOT_LEARNED]


def made(name: str, world: World, belief: Belief, seed: int = 0) -> Planner:
    if name == "annealing":
        return Annealing(belief, seed=seed, evaluations=100)
    setting = Setting(belief=belief, profiles=world.profiles, capacity_mib=world.capacity_mib, seed=seed)
    return PLANNERS[name](setting)


class Watched:
    """Returns the decisions of another planner, and fails if they break the protocol."""

    def __init__(self, planner: Planner, belief: Belief) -> None:
        self._planner, self._belief, self.name = planner, belief, planner.name

    def choose(self, view: PlannerView) -> Sequence[Start]:
        starts = self._planner.choose(view)
        waiting = {member.job: member for member in view.waiting}
        running = [list(gpu.running) for gpu in view.gpus]
        for start in starts:
            assert start.jobs
            running[start.gpu] += [waiting.pop(job) for job in start.jobs]
            assert self._belief.may_share(running[start.gpu]), (self.name, start)
        assert any(running) or not waiting, f"{self.name} holds {waiting} while all GPUs are idle"
        return starts

    @property
    def wake_s(self) -> float:
        return wake_s(self._planner)
