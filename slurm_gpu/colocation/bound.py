"""How short a makespan can be at best: a linear program that every schedule has to obey.

Take any schedule, and add up for how long each set of jobs ran together, each in one of its phases. Whatever
the order was, these times do every job's work in each phase (speed by time), all sets together have no more
time than the GPUs, and no job runs for longer than from its submission to the end. The least end that times
with these properties allow is no later than that of any schedule; the program lets jobs stop, move and go on,
and go through their phases in any order, so that often no schedule reaches it.

Bounded are schedules that run the given work once, at most `most_together` on a GPU, and, with `may_meet`,
only those applications together that it allows: compare a planner that keeps a cap with the bound under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from slurm_gpu.colocation.profile import Profile
from slurm_gpu.colocation.simulator import Job
from slurm_gpu.colocation.world import World

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
TimedSet = tuple[tuple[int, ...], tuple[float, ...]]
"""Indices of parts that run together, and their speeds."""

_EVEN = 1e-9
"""A set that does no more than this beyond one job's work in a second could as well take turns."""


@dataclass(frozen=True, slots=True)
class Part:
    """A job's work in one of its phases."""

    job: int
    application: int
    phase: int
    work_s: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The least makespan, and one way to have it."""

    makespan_s: float
    together_s: Mapping[tuple[int, ...], float]
    """For how long which jobs run together, those that do."""


def least_makespan(
    world: World,
    jobs: Sequence[Job],
    *,
    n_gpus: int = 1,
    most_together: int = 2,
    may_meet: Callable[[tuple[int, ...]], bool] | None = None,
) -> Bound:
    """From the first submission to the last end. `may_meet`: whether applications may be together at all.

    Raises ValueError where a job fits into no empty GPU.
    """
    if not jobs:
        return Bound(0.0, {})
    parts = [part for index, job in enumerate(jobs) for part in parts_of(index, job, world)]
    for part in parts:
        if part.memory_mib > world.capacity_mib:
            raise ValueError(
                f"job {part.job} takes {part.memory_mib:g} MiB, more than a GPU has: {world.capacity_mib:g}"
            )
    sets = list(_sets(world, parts, most_together, may_meet))
    submit_s = np.array([job.submit_s for job in jobs])
    makespan_s, seconds = best_times(
        np.array([part.work_s for part in parts]), np.array([part.job for part in parts]), sets,
        submit_s - submit_s.min(), n_gpus,
    )  # fmt: skip
    together_s: dict[tuple[int, ...], float] = {}
    for (members, _), time_s in zip(sets, seconds, strict=True):
        if time_s > 0:
            key = tuple(parts[one].job for one in members)
            together_s[key] = together_s.get(key, 0.0) + float(time_s)
    return Bound(makespan_s, together_s)


def parts_of(index: int, job: Job, world: World) -> Iterator[Part]:
    """The phases that it goes through: all work beyond its profile is done in the last one."""
    profile: Profile = world.profiles[job.application]
    begin_s, last = 0.0, len(profile.phases) - 1
    for number, (phase, end_s) in enumerate(zip(profile.phases, profile.ends_s, strict=True)):
        end_s = job.work_s if number == last else min(end_s, job.work_s)
        if end_s > begin_s:
            memory_mib = (phase.memory_mib or 0.0) * job.memory_factor
            yield Part(index, job.application, number, end_s - begin_s, memory_mib)
        begin_s = max(end_s, begin_s)


def _sets(
    world: World,
    parts: Sequence[Part],
    most_together: int,
    may_meet: Callable[[tuple[int, ...]], bool] | None,
) -> Iterator[TimedSet]:
    """All that could be of use: each alone, and those that together are faster than one after the other."""
    known: dict[tuple[tuple[int, int], ...], tuple[float, ...] | None] = {}

    def speeds_of(running: tuple[tuple[int, int], ...]) -> tuple[float, ...] | None:
        if may_meet is not None and not may_meet(tuple(application for application, _ in running)):
            return None
        speeds = tuple(min(speed, 1.0) for speed in world.speeds(running))
        return speeds if all(speed > 0 for speed in speeds) and sum(speeds) > 1 + _EVEN else None

    for index in range(len(parts)):
        yield (index,), (1.0,)
    for n in range(2, most_together + 1):
        for members in combinations(range(len(parts)), n):
            chosen = [parts[one] for one in members]
            if len({part.job for part in chosen}) < n:
                continue
            if sum(part.memory_mib for part in chosen) > world.capacity_mib:
                continue
            key = tuple((part.application, part.phase) for part in chosen)
            if key not in known:
                known[key] = speeds_of(key)
            speeds = known[key]
            if speeds is not None:
                yield members, speeds


def best_times(
    work_s: Floats, job: Indices, sets: Sequence[TimedSet], submit_s: Floats, n_gpus: int
) -> tuple[float, Floats]:
    """The least end at which all work (n_parts) of jobs (n_parts) can be done, and each set's time (n_sets).

    `submit_s` (n_jobs): none runs longer than from then to the end. Each part has to be in a set by itself.
    """
    n_sets, n_jobs = len(sets), len(submit_s)
    of_part = np.array([one for members, _ in sets for one in members], dtype=np.intp)
    of_set = np.repeat(np.arange(n_sets), [len(members) for members, _ in sets])
    speed = np.array([one for _, speeds in sets for one in speeds])
    work = csr_array((speed, (of_part, of_set)), shape=(len(work_s), n_sets + 1))
    # A row for each job, and one for the GPUs: what they run, less the time that there is, is 0 or less.
    runs = csr_array(
        (
            np.concatenate([np.ones(len(of_part)), -np.ones(n_jobs), np.ones(n_sets), [-float(n_gpus)]]),
            (
                np.concatenate([job[of_part], np.arange(n_jobs), np.full(n_sets + 1, n_jobs)]),
                np.concatenate([of_set, np.full(n_jobs, n_sets), np.arange(n_sets + 1)]),
            ),
        ),
        shape=(n_jobs + 1, n_sets + 1),
    )
    cost = np.zeros(n_sets + 1)
    cost[-1] = 1.0
    found = linprog(cost, A_ub=runs, b_ub=np.append(-submit_s, 0.0), A_eq=work, b_eq=work_s, method="highs")
    if found.status != 0:
        raise RuntimeError(f"the linear program of {n_jobs} jobs was not solved: {found.message}")
    return float(found.fun), found.x[:-1]
