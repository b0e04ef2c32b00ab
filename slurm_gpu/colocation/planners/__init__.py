"""All planners, by name: made for what is believed of some applications on one model of GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from slurm_gpu.colocation.planner import Belief, Planner
from slurm_gpu.colocation.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a planner is made from."""

    belief: Belief
    profiles: Sequence[Profile]
    """Of the applications, by index; some planners pack by them, the others ask `belief` alone."""
    capacity_mib: float
    """Memory of one GPU."""
    seed: int = 0
    """Of what is random in it."""


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
    from slurm_gpu.colocation.planners.greedy import Greedy

    return Greedy(setting.belief)


def _blossom(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.blossom import Blossom

    return Blossom(setting.belief)


def _lp(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.lp import LinearProgram

    return LinearProgram(setting.belief)


def _annealing(setting: Setting) -> Planner:
    from slurm_gpu.colocation.planners.annealing import Annealing

    return Annealing(setting.belief, seed=setting.seed)


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
"""Each is imported where it is asked for: some need libraries that planning by the others does not."""

DEFAULT = "annealing"


def planner(name: str, setting: Setting) -> Planner:
    """Raises ValueError, with all names, for one that there is not."""
    try:
        make = PLANNERS[name]
    except KeyError:
        raise ValueError(f"there is no planner {name!r}; there are {', '.join(PLANNERS)}") from None
    return make(setting)
