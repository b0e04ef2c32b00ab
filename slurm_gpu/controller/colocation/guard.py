"""Use GPU utilisation to check whether jobs that share a GPU stay within the guaranteed slowdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.trials import TrialRules, slowdowns
from slurm_gpu.controller.colocation.idlest import SHORTEST_S, expected
from slurm_gpu.controller.colocation.job_history import CorunHistory, CorunProgress, RunKey
from slurm_gpu.controller.colocation.store import ColocationStore, KeyProfile

# Minimum duration of a utilisation measurement.
LEAST_S = SHORTEST_S
# Delay after a co-runner starts or ends; a measurement in this time reflects neither the old nor the new set
# of co-runners.
SETTLES_S = 5.0
# The longest period with a known minimum utilisation of a key (see idlest.py), in doublings of LEAST_S.
_MOST_DOUBLINGS = 5
# If the minimum utilisation of a job that runs alone is at most this, the job may be loading data, and its
# speed is unknown.
_IDLE = 0.02
# Tolerance above the guaranteed slowdown, because estimates from utilisation vary.
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
    """The job that arrived last and must leave the GPU."""
    slowed: str
    """The key of the job that was slowed down too much."""
    other: str
    why: str
    """The reason shown in the log and the audit event; it identifies jobs by key."""
    public_why: str
    """The reason shown to the jobs' owners; it identifies jobs by ID, because keys contain user names."""
    is_measured: bool = True
    """Whether the speeds are known."""


def since_s(course: CorunHistory) -> float | None:
    """Return the time from which utilisation reflects the current co-runners; None without co-runners."""
    if not course.stretches or not course.stretches[-1].others:
        return None
    return course.stretches[-1].from_s + SETTLES_S


def measured_after_s(alone: KeyProfile | None) -> float:
    """Return the seconds of sharing after which `speed_of` returns a job's speed; math.inf if never."""
    if alone is not None and alone.util_frac:
        for doublings in range(_MOST_DOUBLINGS + 1):
            seconds = LEAST_S * (1 << doublings)
            if expected(alone.idlest, alone.util_frac, seconds) > _IDLE:
                return SETTLES_S + seconds
    return math.inf


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

    `together` lists the jobs in order of arrival. With a guaranteed slowdown, the jobs must stop sharing if
    any job exceeds it. Otherwise, they must stop if all jobs together do less work than one job alone.
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
                    f"next to {others}, {_numbered([one])} was {how}, above the guaranteed {slowdown:g}",
                )
    elif len(measured) == len(together) and sum(speed for _, speed in measured) < 1 / _TOLERANCE:
        done = sum(speed for _, speed in measured)
        slowest = min(measured, key=lambda one: one[1])[0].course.key
        what = f"{done:.2f} of the work that one job does alone"
        return Parting(
            newcomer.run,
            slowest,
            _other(slowest, together),
            f"together they do {what}",
            f"{_numbered(together)} together did {what}",
        )
    return None


def exceeding(
    together: Sequence[CoRunner], progress: Sequence[CorunProgress], slowdown: float, store: ColocationStore
) -> Parting | None:
    """Decide whether two jobs must stop sharing after their trial; return None if both may continue.

    If the jobs continue at their measured speeds, each whole run must stay within the guaranteed slowdown.
    """
    members = []
    for at, job in enumerate(progress):
        done_s = min(job.done_s, job.done_s + job.left_s)
        left_s = max(job.left_s, 1.0)
        members.append(
            Member(job=at, application=at, left_s=left_s, done_s=done_s, ran_s=done_s + job.lost_s)
        )

    def speeds_of(some: tuple[int, ...]) -> list[float]:
        return [
            store.speed(progress[one].key, [progress[other].key for other in some if other != one])
            for one in some
        ]

    slowed = slowdowns(members, speeds_of)
    if TrialRules(slowdown).are_kept(slowed):
        return None
    worst = slowed.index(max(slowed))
    one, other = together[worst], together[1 - worst]
    how = f"slowed down by a factor of {slowed[worst]:.2f} over its whole run"
    return Parting(
        together[-1].run,
        one.course.key,
        other.course.key,
        f"{one.course.key} would be {how}, above the guaranteed {slowdown:g}",
        f"next to {_numbered([other])}, {_numbered([one])} would have been {how}, "
        f"above the guaranteed {slowdown:g}",
    )


def unmeasured(together: Sequence[CoRunner], elapsed_s: float, slowdown: float) -> Parting:
    """Return the decision to end a trial of two jobs because their speeds were not measured in time."""
    first, second = together
    why = f"not measured within {elapsed_s:.0f} s, and the guaranteed slowdown is {slowdown:g}"
    return Parting(
        second.run,
        first.course.key,
        second.course.key,
        f"the speeds of {first.course.key} with {second.course.key} were {why}",
        f"the speeds of {_numbered(together)} together were {why}",
        is_measured=False,
    )


def _numbered(some: Sequence[CoRunner]) -> str:
    *first, last = (str(one.run.job_id) for one in some)
    return f"jobs {', '.join(first)} and {last}" if first else f"job {last}"


def _other(key: str, together: Sequence[CoRunner]) -> str:
    """Return the key of the co-runner to blame for slowing down the job with `key`.

    The job that arrived last is to blame; if it is the slowed job itself, the previous job is.
    """
    last = together[-1].course.key
    return last if last != key else together[-2].course.key


def observed(course: CorunHistory, speed: float, store: ColocationStore) -> Mapping[str, float]:
    """Split a speed that was measured with several co-runners into a speed with each co-runner.

    All speeds are assumed to deviate from their predictions by the same factor.
    """
    others = course.stretches[-1].others
    factor = speed / store.speed(course.key, others)
    return {other: min(1.0, store.speed(course.key, (other,)) * factor) for other in others}
