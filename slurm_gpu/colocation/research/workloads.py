"""The applications, the card and the five workloads of the DqnGPU thesis, as far as its text tells them.

What it does not tell is chosen here, so that what it does tell holds: docs/colocation.md says which is which.
How much they slow each other down is a model of our own (`contention.TurnTaking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.colocation.profiles.profile import Phase, Profile
from slurm_gpu.colocation.research.contention import TurnTaking
from slurm_gpu.colocation.simulation.simulator import Job
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.measured import Measured

JOBS = 30
"""In each workload."""


@dataclass(frozen=True, slots=True)
class Card:
    """A model of GPU."""

    name: str
    memory_mib: float
    cores: int
    pcie_gb_s: float
    """Both directions together."""


TITAN_XP = Card("NVIDIA TITAN Xp", 12196, 3840, 32.0)
"""Its 12 GB as NVML tells them."""


@dataclass(frozen=True, slots=True)
class _App:
    profile: Profile
    refill: float


def _app(name: str, kind: str, refill: float, *phases: tuple[float, float, float, float, float]) -> _App:
    """Phases are (seconds, util, memory in MiB, sm, pcie)."""
    return _App(
        Profile(
            name,
            TITAN_XP.name,
            tuple(
                Phase(seconds=seconds, util=util, memory_mib=mib, sm=sm, pcie=pcie)
                for seconds, util, mib, sm, pcie in phases
            ),
            kind,
        ),
        refill,
    )


def _training(name: str, seconds: float, util: float, mib: float, sm: float, pcie: float) -> _App:
    """Loads its data, and goes on evenly to the end."""
    return _app(name, "training", 0.02, (8, 0.05, mib / 2, 0.02, 0.2), (seconds - 8, util, mib, sm, pcie))


_HPC = "molecular dynamics"
_APPS = (
    _app(
        "LAMMPS",
        _HPC,
        0.01,
        (48, 0.38, 363, 0.25, 0.05),
        (48, 0.38, 3075, 0.25, 0.05),
        (48, 0.38, 5600, 0.25, 0.05),
        (48, 0.38, 8000, 0.25, 0.05),
        (8, 1.0, 8499, 0.9, 0.05),
    ),
    _app("GROMACS", _HPC, 0.01, (4, 0.05, 200, 0.02, 0.05), (97, 0.33, 755, 0.2, 0.08)),
    _app(
        "QMCPACK",
        "quantum Monte Carlo",
        0.01,
        (95, 0.2, 0, 0.1, 0.02),
        (50, 0.65, 5135, 0.35, 0.05),
        (55, 0.9, 5135, 0.55, 0.05),
    ),
    _app("HOOMD", _HPC, 0.01, (5, 0.05, 200, 0.02, 0.05), (200, 0.72, 700, 0.55, 0.03)),
    _training("googlenet", 170, 0.75, 800, 0.12, 0.08),
    _training("alexnet", 52, 0.38, 5500, 0.2, 0.15),
    _training("vgg11", 80, 0.85, 6500, 0.3, 0.1),
    _training("vgg16", 95, 0.92, 6500, 0.26, 0.08),
    _training("resnet50", 115, 0.85, 6400, 0.45, 0.12),
    _training("resnet101", 165, 0.92, 6450, 0.5, 0.1),
    _training("resnet152", 220, 0.93, 6500, 0.5, 0.08),
)
PROFILES = tuple(app.profile for app in _APPS)
THESIS_WORLD = TurnTaking(PROFILES, [app.refill for app in _APPS], TITAN_XP.memory_mib)

THESIS: Mapping[str, tuple[str, ...]] = {
    "gpu_heavy": ("vgg11", "vgg16", "resnet50", "resnet101", "resnet152", "QMCPACK", "HOOMD", "LAMMPS"),
    "gpu_light": ("alexnet", "GROMACS"),
    "mem_heavy": ("vgg11", "vgg16", "resnet50", "resnet101", "resnet152"),
    "mem_light": ("alexnet", "googlenet", "QMCPACK", "HOOMD", "GROMACS"),
    "random": tuple(app.profile.application for app in _APPS),
}
"""Which applications the jobs of a workload are drawn from."""


def application(name: str) -> int:
    """The index of one of the thesis's applications."""
    return next(index for index, one in enumerate(PROFILES) if one.application == name)


def thesis_jobs(workload: str, seed: int, n: int = JOBS) -> list[Job]:
    """Drawn with replacement; all wait from the beginning, each runs as long as its profile."""
    random = _random(workload, seed)
    names = THESIS[workload]
    drawn = [application(names[int(index)]) for index in random.integers(len(names), size=n)]
    return [Job(one, PROFILES[one].seconds) for one in drawn]


def _random(workload: str, seed: int) -> np.random.Generator:
    """Workloads of one seed have nothing in common."""
    return np.random.default_rng((seed, *workload.encode()))


TABLE_WORK_S = (60.0, 600.0)
"""Pair tables do not tell how long jobs run: drawn between these, each factor as likely as any other."""
TABLE_KINDS = 3
"""Applications in a sweep."""
TABLE: tuple[str, ...] = ("random", "heavy", "light", "mixed", "sweep")
"""Workloads of a pair table: of all applications; of the half that slow others down the most, or the least;
of heavy and light ones in turn; and of few applications, as in a search of hyperparameters."""


def table_world(measured: Measured) -> TableWorld:
    """Applications of one phase each, of which nothing is known but speeds."""
    return TableWorld(
        [Profile(name, measured.gpu_model, (Phase(seconds=TABLE_WORK_S[1]),)) for name in measured.names],
        measured.table(),
    )


def weights_on_others(measured: Measured) -> list[float]:
    """By application: how much longer others take beside it, the mean over all; inf where nobody knows.

    No more than twice as long counts, as one after the other takes, and so does who cannot run beside it.
    """
    lost: list[list[float]] = [[] for _ in measured.names]
    for (_, others), speed in measured.speeds.items():
        if len(others) == 1:
            lost[others[0]].append(1 / speed - 1 if speed > 0.5 else 1.0)
    return [sum(some) / len(some) if some else float("inf") for some in lost]


def table_jobs(measured: Measured, workload: str, seed: int, n: int = JOBS) -> list[Job]:
    """As thesis_jobs, of a pair table's applications."""
    random = _random(workload, seed)
    weights = weights_on_others(measured)
    by_weight = sorted(range(len(weights)), key=lambda one: (weights[one], one))
    half = max(len(by_weight) // 2, 1)
    light, heavy = by_weight[:half], by_weight[-half:]

    def draw(some: Sequence[int], size: int) -> list[int]:
        return [some[int(index)] for index in random.integers(len(some), size=size)]

    match workload:
        case "random":
            drawn = draw(by_weight, n)
        case "heavy":
            drawn = draw(heavy, n)
        case "light":
            drawn = draw(light, n)
        case "mixed":
            pairs = zip(draw(heavy, n), draw(light, n), strict=True)
            drawn = [one for pair in pairs for one in pair][:n]
        case "sweep":
            drawn = draw(draw(by_weight, TABLE_KINDS), n)
        case _:
            raise ValueError(f"there is no workload {workload!r} of a pair table; there are {TABLE}")
    low, high = np.log(TABLE_WORK_S)
    return [
        Job(one, float(work)) for one, work in zip(drawn, np.exp(random.uniform(low, high, n)), strict=True)
    ]
