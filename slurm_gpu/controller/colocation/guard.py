"""Use GPU utilisation to check whether shared jobs stay within the guaranteed slowdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_gpu.controller.colocation.database_queries import RunKey
from slurm_gpu.controller.colocation.idlest import SHORTEST_S, expected
from slurm_gpu.controller.colocation.job_history import CorunHistory
from slurm_gpu.controller.colocation.store import ColocationStore

# Minimum duration of a utilisation measurement.
LEAST_S = SHORTEST_S
# Delay after a co-runner started or ended: a measurement during it belongs to neither group of jobs.
SETTLES_S = 5.0
# A job alone with at most this utilisation may be loading data, so its speed is unknown.
_IDLE = 0.02
# Tolerance over the guaranteed slowdown, because the estimate by utilisation varies.
_TOLERANCE = 1.10


class CoRunner(NamedTuple):
    """A job on a shared GPU."""

    run: RunKey
    course: CorunHistory
    speed: float | None
    """The measured speed; None if it was not measured."""


class Parting(NamedTuple):
    """The decision that jobs must stop sharing a GPU."""

    newcomer: RunKey
    """The last job to arrive; it must leave the GPU."""
    slowed: str
    """The key of the job that was slowed down too much."""
    other: str
    why: str
    """The reason shown in the log and the audit event; it identifies jobs by key."""
    public_why: str
    """The reason shown to the jobs' owners; it identifies jobs by ID, because keys contain user names."""


def since_s(course: CorunHistory) -> float | None:
    """Return the time from which utilisation reflects the current co-runners; None without co-runners."""
    if not course.stretches or not course.stretches[-1].others:
        return None
    return course.stretches[-1].from_s + SETTLES_S


def speed_of(course: CorunHistory, used: tuple[float, float], store: ColocationStore) -> float | None:
    """Estimate a job's speed relative to running alone from its utilisation; return None if unknown.

    `used` contains the job's utilisation and the number of measured seconds. Even when a job runs alone, its
    utilisation is sometimes below its average. The measured utilisation is therefore compared with the job's
    minimum over an equally long period alone.
    """
    alone = store.profiles.get(course.key)
    if used[1] < LEAST_S or alone is None or not alone.util_frac:
        return None
    least = expected(alone.idlest, alone.util_frac, used[1])
    return min(1.0, used[0] / least) if least > _IDLE else None


def parting(together: Sequence[CoRunner], slowdown: float | None, store: ColocationStore) -> Parting | None:
    """Decide whether the jobs on one GPU must stop sharing; return None if all may continue.

    `together` lists the jobs in order of arrival. With a guaranteed slowdown, they must stop if any job
    exceeds it. Without one, they must stop if all jobs together do less work than one job alone.
    """
    if len(together) < 2:
        return None
    newcomer = together[-1]
    measured = [(one, one.speed) for one in together if one.speed is not None]
    if slowdown is not None:
        for one, speed in measured:
            if speed < 1 / (slowdown * _TOLERANCE):
                key, others = one.course.key, _numbered([two for two in together if two is not one])
                how = f"slowed down by a factor of {1 / max(speed, 0.01):.2f}"
                return Parting(
                    newcomer.run,
                    key,
                    _other(key, together),
                    f"{key} is {how}, above the guaranteed {slowdown:g}",
                    f"{_numbered([one])} was {how} with {others}, above the guaranteed {slowdown:g}",
                )
    elif len(measured) == len(together) and sum(speed for _, speed in measured) < 1 / _TOLERANCE:
        done = sum(speed for _, speed in measured)
        slowest = min(measured, key=lambda one: one[1])[0].course.key
        what = f"{done:.2f} of the work of one job alone"
        return Parting(
            newcomer.run,
            slowest,
            _other(slowest, together),
            f"together they do {what}",
            f"{_numbered(together)} together did {what}",
        )
    return None


def _numbered(some: Sequence[CoRunner]) -> str:
    numbers = ", ".join(str(one.run.job_id) for one in some)
    return f"job{'s' if len(some) > 1 else ''} {numbers}"


def _other(key: str, together: Sequence[CoRunner]) -> str:
    """Return the key of the co-runner to blame for slowing down the job with `key`.

    This is the last job to arrive or, if that is the slowed job itself, the one before it.
    """
    last = together[-1].course.key
    return last if last != key else together[-2].course.key


def observed(course: CorunHistory, speed: float, store: ColocationStore) -> Mapping[str, float]:
    """Split a speed measured with several co-runners into the speeds next to each of them.

    All speeds are assumed to deviate from their predictions by the same factor.
    """
    others = course.stretches[-1].others
    factor = speed / store.speed(course.key, others)
    return {other: min(1.0, store.speed(course.key, (other,)) * factor) for other in others}
