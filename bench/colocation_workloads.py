"""The applications, the GPU and the five workloads of the DqnGPU thesis, as far as its text states them.

The other values are chosen to agree with the stated ones; bench/results/colocation.md distinguishes them. The
slowdown is a separate model (`colocation_contention.TurnTaking`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.colocation_contention import TurnTaking
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.research.workloads import JOBS, random_of
from slurm_gpu.colocation.simulation.simulator import SharingJob


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model."""

    name: str
    memory_mib: float
    cores: int
    pcie_gb_s: float
    """The link's total throughput in both directions."""


TITAN_XP = Card("NVIDIA TITAN Xp", 12196, 3840, 32.0)
"""The GPU of the thesis; NVML reports its 12 GB as 12,196 MiB."""


@dataclass(frozen=True, slots=True)
class _App:
    profile: ApplicationProfile
    refill: float


def _app(name: str, kind: str, refill: float, *phases: tuple[float, float, float, float, float]) -> _App:
    """Create an application; phases are (seconds, util, memory in MiB, sm, pcie)."""
    return _App(
        ApplicationProfile(
            name,
            TITAN_XP.name,
            tuple(
                ProfilePhase(seconds=seconds, util=util, memory_mib=mib, sm=sm, pcie=pcie)
                for seconds, util, mib, sm, pcie in phases
            ),
            kind,
        ),
        refill,
    )


def _training(name: str, seconds: float, util: float, mib: float, sm: float, pcie: float) -> _App:
    """Create an application that loads data, then computes evenly to the end."""
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
"""The applications from which the jobs of each workload are drawn."""


def application(name: str) -> int:
    """Return the index of one of the thesis's applications."""
    return next(index for index, one in enumerate(PROFILES) if one.application == name)


def thesis_jobs(workload: str, seed: int, n: int = JOBS) -> list[SharingJob]:
    """Draw jobs with replacement; all wait from the start, and each runs as long as its profile."""
    random = random_of(workload, seed)
    names = THESIS[workload]
    drawn = [application(names[int(index)]) for index in random.integers(len(names), size=n)]
    return [SharingJob(one, PROFILES[one].seconds) for one in drawn]
