"""Turn a pair table into workloads: a world of its applications, and jobs drawn from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.simulator import SharingJob
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.measured import Measured

# Number of jobs in each workload.
JOBS = 30
# Durations of jobs are drawn log-uniformly between these bounds, because pair tables contain none.
TABLE_WORK_S = (60.0, 600.0)
# Number of applications in a sweep.
TABLE_KINDS = 3
# Workloads of a pair table: all applications; the half that slows others most; the half that slows them
# least; both halves alternately; and a few applications, as in a hyperparameter search.
TABLE: tuple[str, ...] = ("random", "heavy", "light", "mixed", "sweep")


def random_of(workload: str, seed: int) -> np.random.Generator:
    """Return a random generator that is independent for each workload and seed."""
    return np.random.default_rng((seed, *workload.encode()))


def table_world(measured: Measured) -> TableWorld:
    """Return a world whose applications have one phase each and known speeds, but no known uses."""
    return TableWorld(
        [
            ApplicationProfile(name, measured.gpu_model, (ProfilePhase(seconds=TABLE_WORK_S[1]),))
            for name in measured.names
        ],
        measured.table(),
    )


def weights_on_others(measured: Measured) -> list[float]:
    """Return the mean additional time that each application costs its co-runners; inf if unknown.

    The additional time is relative to the co-runner's duration when it runs alone. It is at most 1, as if
    both ran one after the other, and 1 if the two cannot run together.
    """
    lost: list[list[float]] = [[] for _ in measured.names]
    for (_, others), speed in measured.speeds.items():
        if len(others) == 1:
            lost[others[0]].append(1 / speed - 1 if speed > 0.5 else 1.0)
    return [sum(some) / len(some) if some else float("inf") for some in lost]


def table_jobs(measured: Measured, workload: str, seed: int, n: int = JOBS) -> list[SharingJob]:
    """Draw jobs with replacement from a pair table's applications; all jobs wait from the beginning."""
    random = random_of(workload, seed)
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
            raise ValueError(f"unknown workload {workload!r} of a pair table; available: {TABLE}")
    low, high = np.log(TABLE_WORK_S)
    return [
        SharingJob(one, float(work))
        for one, work in zip(drawn, np.exp(random.uniform(low, high, n)), strict=True)
    ]
