"""Create planners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.planner import Belief, Planner

if TYPE_CHECKING:  # slurm-gpuctld plans without numpy
    from slurm_gpu.colocation.learned.net import Net
    from slurm_gpu.colocation.profiles.profile import ApplicationProfile


SLOWED = 1 / 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The inputs from which a planner is created."""

    belief: Belief
    profiles: Sequence[ApplicationProfile]
    """Profiles of the applications, by index.

    Some planners pack jobs by these profiles; others use only `belief`.
    """
    capacity_mib: float
    """Memory of one GPU."""
    seed: int = 0
    """Seed of the planner's random numbers."""
    evaluations: int | None = None
    """Number of orders that annealing evaluates for a new plan; None for the default."""
    slowed: float = SLOWED
    """Fraction of jobs that annealing, lp and dqngpu may slow down noticeably under a cap; 1 permits all."""
    nets: Mapping[str, Net] = field(default_factory=dict)
    """Trained nets of the planners in LEARNED_PLANNERS, by name."""


def _sjf(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.sjf import ShortestFirst

    return ShortestFirst()


def _tetris(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.tetris import Tetris

    return Tetris(setting.belief, setting.profiles, setting.capacity_mib)


def _fgd(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.fgd import FragmentationGradient

    return FragmentationGradient(setting.belief, setting.profiles, setting.capacity_mib)


def _greedy(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.account import NeverSlower
    from slurm_gpu.colocation.planners.greedy import Greedy

    return NeverSlower(Greedy, setting.belief)


def _blossom(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.account import NeverSlower
    from slurm_gpu.colocation.planners.blossom import Blossom

    return NeverSlower(Blossom, setting.belief)


def _lp(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.account import NeverSlower
    from slurm_gpu.colocation.planners.lp import LinearProgram
    from slurm_gpu.colocation.planners.sparing import MostSpared

    return NeverSlower(lambda belief: MostSpared(LinearProgram, belief, setting.slowed), setting.belief)


def _annealing(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.annealing import EVALUATIONS, Annealing

    evaluations = EVALUATIONS if setting.evaluations is None else setting.evaluations
    return Annealing(setting.belief, seed=setting.seed, evaluations=evaluations, slowed=setting.slowed)


# Each module is imported on demand, because some need libraries that others do not.
PLANNERS: Mapping[str, Callable[[Setting], Planner]] = MappingProxyType(
    {
        "sjf": _sjf,
        "tetris": _tetris,
        "fgd": _fgd,
        "greedy": _greedy,
        "blossom": _blossom,
        "lp": _lp,
        "annealing": _annealing,
    }
)


def _learned(name: str, net: Net, setting: Setting) -> Planner:
    if name == "dqngpu":
        from slurm_gpu.colocation.learned.dqngpu import DqnGpu

        return DqnGpu(net, setting.belief, setting.profiles, setting.capacity_mib, slowed=setting.slowed)
    from slurm_gpu.colocation.learned.deeprm import ImagePlanner

    return ImagePlanner(name, net, setting.belief, setting.profiles, setting.capacity_mib)


DEFAULT = "annealing"


def planner(name: str, setting: Setting) -> Planner:
    """Create a planner by name; raise ValueError if the name is unknown or the planner is not trained."""
    if name in LEARNED_PLANNERS:
        if name not in setting.nets:
            raise ValueError(f"planner {name!r} is not trained yet; run `slurm-gpu colocation train`")
        return _learned(name, setting.nets[name], setting)
    try:
        make = PLANNERS[name]
    except KeyError:
        names = ", ".join([*PLANNERS, *LEARNED_PLANNERS])
        raise ValueError(f"unknown planner {name!r}; available: {names}") from None
    return make(setting)
