"""Whether jobs that share run as fast as was promised, by what their GPU does for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_gpu.controller.colocation.database_queries import RunKey
from slurm_gpu.controller.colocation.idlest import SHORTEST_S, expected
from slurm_gpu.controller.colocation.job_history import CorunHistory
from slurm_gpu.controller.colocation.store import ColocationStore

LEAST_S = SHORTEST_S
"""Of a utilisation that was measured for less nothing is concluded."""
SETTLES_S = 5.0
"""After somebody came or left: what is measured then belongs to neither."""
_IDLE = 0.02
"""Who uses so little of the GPU alone may as well be loading its data: nothing is concluded."""
_TOLERANCE = 1.10
"""A slowdown is estimated by utilisation, which varies by itself: beyond the promise by so much is beyond."""


class CoRunner(NamedTuple):
    """A job on a shared GPU."""

    run: RunKey
    course: CorunHistory
    speed: float | None
    """As it was measured; None where it was not."""


class Parting(NamedTuple):
    """Jobs that are not to go on together."""

    newcomer: RunKey
    """Who came last, and has to go."""
    slowed: str
    """The key of whom sharing slowed down too much."""
    other: str
    why: str
    """By keys."""
    told: str
    """By the numbers of jobs, as all of their owners may know it: keys name users."""


def since_s(course: CorunHistory) -> float | None:
    """From when on its utilisation tells how fast it is beside who is there now; None where nobody is."""
    if not course.stretches or not course.stretches[-1].others:
        return None
    return course.stretches[-1].from_s + SETTLES_S


def speed_of(course: CorunHistory, used: tuple[float, float], store: ColocationStore) -> float | None:
    """How fast it is at least, from its share of the GPU's time now and alone; None where that says nothing.

    Alone its like use the GPU for less than their mean at times, too: the least that they have in as many
    seconds is what it is held against.
    """
    alone = store.profiles.get(course.key)
    if used[1] < LEAST_S or alone is None or not alone.util_frac:
        return None
    least = expected(alone.idlest, alone.util_frac, used[1])
    return min(1.0, used[0] / least) if least > _IDLE else None


def parting(together: Sequence[CoRunner], slowdown: float | None, store: ColocationStore) -> Parting | None:
    """Who is to go, of the jobs of one GPU in the order in which they came; None for nobody.

    With a promise: where anybody is slowed down beyond it. Without: where all do less than one alone.
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
                    f"{key} is {how}, beyond {slowdown:g}",
                    f"{_numbered([one])} was {how} beside {others}, beyond the {slowdown:g} promised",
                )
    elif len(measured) == len(together) and sum(speed for _, speed in measured) < 1 / _TOLERANCE:
        done = sum(speed for _, speed in measured)
        slowest = min(measured, key=lambda one: one[1])[0].course.key
        what = f"{done:.2f} of what one does alone"
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
    """Whom to hold responsible: the newcomer, or where that is slowed down, who came before it."""
    last = together[-1].course.key
    return last if last != key else together[-2].course.key


def observed(course: CorunHistory, speed: float, store: ColocationStore) -> Mapping[str, float]:
    """What a speed beside several says of each: off by one factor from what was predicted."""
    others = course.stretches[-1].others
    factor = speed / store.speed(course.key, others)
    return {other: min(1.0, store.speed(course.key, (other,)) * factor) for other in others}
