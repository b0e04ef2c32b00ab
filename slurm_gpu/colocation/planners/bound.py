"""Compute a lower bound of the makespan by a linear program whose constraints every schedule satisfies.

For any schedule, add up how long each set of jobs runs together, where each job is in one of its phases.
Multiplied by speeds, these times complete every job's work in each phase, regardless of the order in which
the sets run. All sets together take no more time than the GPUs have, and no job runs for longer than the time
from its submission to the end. The earliest end that satisfies these constraints is therefore no later than
the end of any schedule. The program lets jobs stop, move and resume, and run their phases in any order.
Therefore, often no schedule can reach the bound.

Equal jobs form one class with one row per phase. Classes do not change the result: feasible times remain
feasible if equal jobs are exchanged. The mean over all exchanges is feasible, ends at the same moment, and
treats these jobs equally. The size of the program therefore grows with the number of classes, not with the
number of jobs.

The bound holds for schedules that run the given work once, with at most `most_together` jobs per GPU. With a
`cap`, no job takes longer than this factor times its work. Applications do not share a GPU if every overlap
of their phases would exceed the cap, as in `known_belief.KnownBelief.may_share`. The duration of a job is the
sum of the times of all sets that contain the job; this constraint adds one row per class. If only some jobs
may be slowed noticeably, the total duration of a class is limited: these jobs may reach the cap, and the
others may not be noticeably slower. The program chooses the number of slowed jobs in each class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from slurm_gpu.colocation.profiles.profile import ApplicationProfile
from slurm_gpu.colocation.simulation.simulator import SharingJob
from slurm_gpu.colocation.simulation.world import World
from slurm_gpu.colocation.speeds.groups import keeps

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
# Indices of parts that run together, and their speeds.
TimedSet = tuple[tuple[int, ...], tuple[float, ...]]

# A job is slowed down if it takes more than this factor times its duration alone.
NOTICED = 1.02
# A set that gains no more work per second than this can be replaced by jobs that alternate.
_EVEN = 1e-9


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """One phase of a class of equal jobs."""

    job: int
    """The index of the class."""
    application: int
    phase: int
    work_s: float
    """The work of each job in this phase."""
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Considerate:
    """The limits on the slowdown of jobs that share a GPU."""

    cap: float
    """Maximum duration of each job, relative to its duration when running alone."""
    most_slowed: float
    """Maximum number of jobs that may take more than NOTICED times as long as when running alone."""


@dataclass(frozen=True, slots=True)
class MakespanBound:
    """The shortest makespan, and how long each set of applications runs together to achieve it."""

    makespan_s: float
    together_s: Mapping[tuple[int, ...], float]
    """Seconds for which each set of applications runs together."""


def least_makespan(
    world: World,
    jobs: Sequence[SharingJob],
    *,
    n_gpus: int = 1,
    most_together: int = 2,
    cap: float = math.inf,
    most_slowed: float = math.inf,
) -> MakespanBound:
    """Return the shortest possible time from the first submission to the last end.

    For `cap`, see the description of the module; math.inf means no cap. Under a cap, at most `most_slowed`
    jobs take longer than NOTICED times their work. Raise ValueError if a job does not fit into an empty GPU.
    """
    if not jobs:
        return MakespanBound(0.0, {})
    alike = Counter(jobs)
    n_alike = np.array(list(alike.values()), dtype=np.float64)
    parts = [part for index, job in enumerate(alike) for part in parts_of(index, job, world)]
    for part in parts:
        if part.memory_mib > world.capacity_mib:
            number = jobs.index(list(alike)[part.job])
            raise ValueError(
                f"job {number} takes {part.memory_mib:g} MiB, but a GPU has only {world.capacity_mib:g} MiB"
            )
    sets = list(_sets(world, parts, list(alike.values()), most_together, cap))
    job = np.array([part.job for part in parts])
    submit_s = np.array([one.submit_s for one in alike])
    makespan_s, seconds = best_times(
        np.array([part.work_s for part in parts]) * n_alike[job],
        job,
        sets,
        submit_s - submit_s.min(),
        n_gpus,
        n_alike,
        Considerate(cap, most_slowed),
    )
    together_s: dict[tuple[int, ...], float] = {}
    for (members, _), time_s in zip(sets, seconds, strict=True):
        if time_s > 0:
            key = tuple(sorted(parts[one].application for one in members))
            together_s[key] = together_s.get(key, 0.0) + float(time_s)
    return MakespanBound(makespan_s, together_s)


def parts_of(index: int, job: SharingJob, world: World) -> Iterator[PhaseWork]:
    """Return the phases that a job runs through; work after the profile's end belongs to the last one."""
    profile: ApplicationProfile = world.profiles[job.application]
    begin_s, last = 0.0, len(profile.phases) - 1
    for number, (phase, end_s) in enumerate(zip(profile.phases, profile.ends_s, strict=True)):
        end_s = job.work_s if number == last else min(end_s, job.work_s)
        if end_s > begin_s:
            memory_mib = (phase.memory_mib or 0.0) * job.memory_factor
            yield PhaseWork(index, job.application, number, end_s - begin_s, memory_mib)
        begin_s = max(end_s, begin_s)


def _sets(
    world: World, parts: Sequence[PhaseWork], n_alike: Sequence[int], most_together: int, cap: float
) -> Iterator[TimedSet]:
    """Return all useful sets: each part alone, and parts that are faster together than in turn."""
    known: dict[tuple[tuple[int, int], ...], tuple[float, ...] | None] = {}

    @cache
    def may_meet(applications: tuple[int, ...]) -> bool:
        phases = (range(len(world.profiles[one].phases)) for one in applications)
        return any(
            keeps(world.speeds(tuple(zip(applications, some, strict=True))), cap) for some in product(*phases)
        )

    def speeds_of(running: tuple[tuple[int, int], ...]) -> tuple[float, ...] | None:
        if not math.isinf(cap) and not may_meet(tuple(application for application, _ in running)):
            return None
        speeds = tuple(min(speed, 1.0) for speed in world.speeds(running))
        return speeds if all(speed > 0 for speed in speeds) and sum(speeds) > 1 + _EVEN else None

    for index in range(len(parts)):
        yield (index,), (1.0,)
    for n in range(2, most_together + 1):
        for members in combinations_with_replacement(range(len(parts)), n):
            chosen = [parts[one] for one in members]
            if any(many > n_alike[job] for job, many in Counter(part.job for part in chosen).items()):
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
    work_s: Floats,
    job: Indices,
    sets: Sequence[TimedSet],
    submit_s: Floats,
    n_gpus: int,
    n_alike: Floats,
    limits: Considerate | None = None,
) -> tuple[float, Floats]:
    """Return the earliest time at which all work can be done, and the duration of each set (n_sets).

    Each part has the work `work_s` (n_parts) and belongs to the class `job` (n_parts). Each class has
    `n_alike` (n_classes) jobs. A job can only run between the `submit_s` (n_classes) of its class and the
    end of all work, and no longer than the limits permit. Each part must form a set by itself; a set may
    contain a part several times.
    """
    n_sets, n_classes = len(sets), len(submit_s)
    of_part = np.array([one for members, _ in sets for one in members], dtype=np.intp)
    of_set = np.repeat(np.arange(n_sets), [len(members) for members, _ in sets])
    speed = np.array([one for _, speeds in sets for one in speeds])
    # Columns: each set's time, the end, and the number of slowed jobs of each class.
    n_columns, end = n_sets + 1 + n_classes, n_sets
    work = csr_array((speed, (of_part, of_set)), shape=(len(work_s), n_columns))
    runs = csr_array((np.ones(len(of_part)), (job[of_part], of_set)), shape=(n_classes, n_columns))
    to_the_end = np.zeros((n_classes, n_columns))
    to_the_end[:, end] = -n_alike
    gpus = np.zeros((1, n_columns))
    gpus[0, :end], gpus[0, end] = 1.0, -float(n_gpus)
    rows = [runs + csr_array(to_the_end), csr_array(gpus)]
    there_is: list[Floats] = [-n_alike * submit_s, np.zeros(1)]
    if limits is not None and math.isfinite(limits.cap):
        class_work_s = np.bincount(job, work_s, n_classes).astype(np.float64)
        noticed = min(NOTICED, limits.cap)
        slowed = np.zeros((n_classes + 1, n_columns))
        slowed[:n_classes, end + 1 :] = np.diag((noticed - limits.cap) * class_work_s / n_alike)
        slowed[-1, end + 1 :] = 1.0
        rows += [runs + csr_array(slowed[:-1]), csr_array(slowed[-1:])]
        there_is += [noticed * class_work_s, np.array([min(limits.most_slowed, n_alike.sum())])]
    cost = np.zeros(n_columns)
    cost[end] = 1.0
    found = linprog(
        cost,
        A_ub=vstack(rows, format="csr"),
        b_ub=np.concatenate(there_is),
        A_eq=work,
        b_eq=work_s,
        bounds=[*[(0, None)] * (n_sets + 1), *((0, many) for many in n_alike)],
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"the program for {n_classes} kinds of jobs was not solved: {found.message}")
    return float(found.fun), found.x[:n_sets]
