"""Estimate the memory of applications that share a GPU, with a margin for errors."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from bench.colocation_experience import contains
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

_ENOUGH = 30
"""Minimum number of known errors before headroom may fall below its initial value."""
_LEAST_PART = 0.02
_KEPT = 1000
_BEYOND_LARGEST = 5.0
"""The margin above the largest of n uniformly distributed errors that a further error exceeds with
probability e**-5, one in a hundred and fifty."""


class Margin:
    """An upper bound on errors, learned from one error at a time.

    The margin starts at `first`. After few errors, it is well above the largest error; after many, just above
    it. The margin is valid for bounded errors; an unbounded error exceeds it with a probability of about 1/n
    after n errors.
    """

    def __init__(self, first: float, least: float = 0.0) -> None:
        if not 0 <= least <= first < math.inf:
            raise ValueError(f"the initial margin must be at least {least}, not {first}")
        self._first, self._least = first, least
        self._sorted: list[float] = []

    def add(self, error: float) -> None:
        """Add an error: used minus expected memory. Raises ValueError if it is not a number."""
        if not math.isfinite(error):
            raise ValueError(f"an error must be a number, not {error}")
        insort(self._sorted, error)
        if len(self._sorted) > _KEPT:
            # The largest error is never dropped, since it can happen again.
            self._sorted.pop(len(self._sorted) // 2)

    @property
    def errors(self) -> int:
        """Return the number of kept errors."""
        return len(self._sorted)

    @property
    def value(self) -> float:
        """Return the margin to add to the expected memory."""
        if not self._sorted:
            return self._first
        largest, n = self._sorted[-1], len(self._sorted)
        margin = largest + _BEYOND_LARGEST * (largest - self._sorted[0]) / n
        return max(self._first if n < _ENOUGH else self._least, margin)


class Headroom:
    """The headroom for memory that profiles do not contain."""

    def __init__(self, first_part: float = 0.25, first_group_mib: float = 300.0) -> None:
        self.part = Margin(first_part, min(first_part, _LEAST_PART))
        """The headroom of each job's own memory."""
        self.group_mib = Margin(first_group_mib)
        """The headroom of a group, above the sum of its members."""
        self._ran_out: dict[tuple[int, ...], float] = {}
        """By sorted group: the least factor by which it exceeded its expected memory."""

    def add_job(self, expected_mib: float, taken_mib: float) -> None:
        """Add one job's expected and used memory; without an expected value there is no error."""
        if expected_mib > 0:
            self.part.add(taken_mib / expected_mib - 1)

    def add_group(self, each_mib: Sequence[float], together_mib: float) -> None:
        """Add the memory that several jobs used, individually and in total, as the GPU reported it."""
        self.group_mib.add(together_mib - sum(each_mib))

    def add_out_of_memory(self, group: Sequence[int], expected_mib: float, capacity_mib: float) -> None:
        """Record that these applications used more than the capacity, given their expected memory.

        Raise ValueError unless the expected memory was above 0 and below the capacity.
        """
        if not 0 < expected_mib < capacity_mib < math.inf:
            raise ValueError(f"{expected_mib} MiB must be above 0 and below {capacity_mib} MiB")
        key, times = tuple(sorted(group)), capacity_mib / expected_mib * (1 + _LEAST_PART)
        self._ran_out[key] = max(self._ran_out.get(key, 1.0), times)

    def times(self, group: Sequence[int]) -> float:
        """Return the factor by which these applications may exceed their expected memory.

        The factor is larger if some of the applications ran out of memory before. With this factor and a
        margin for errors, their group would not have been started.
        """
        own = [times for small, times in self._ran_out.items() if contains(group, small)]
        return max(own, default=1.0) * (1 + self.part.value)

    def needed_mib(self, each_mib: Sequence[float], times: float | None = None) -> float:
        """Return the memory that jobs with this expected memory may use together (`times`: see times())."""
        if len(each_mib) < 2 or times is None:
            times = 1 + self.part.value
        return sum(each_mib) * times + (self.group_mib.value if len(each_mib) > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class PhaseInterval:
    """A phase, and the earliest and latest time at which a job may be in it."""

    from_s: float
    until_s: float
    memory_mib: float


def phase_intervals(
    profile: ApplicationProfile, member: Member, slowest: float, timing: float
) -> list[PhaseInterval] | None:
    """Return the possible times of each phase from now on, or None if the profile has no memory.

    The job runs at a speed between `slowest` (above 0) and 1, and each phase may end earlier or later than
    in the profile, by up to the fraction `timing`. A phase without a value uses the profile's peak memory.
    """
    peak = profile.peak("memory_mib")
    if peak is None:
        return None
    ends_s = (member.done_s + member.left_s) * (1 + timing)
    found = []
    begin_s = 0.0
    for at, (phase, end_s) in enumerate(zip(profile.phases, profile.ends_s, strict=True)):
        last = at + 1 == len(profile.phases)
        from_s = max(begin_s / (1 + timing) - member.done_s, 0.0)
        until_s = (ends_s if last else min(end_s * (1 + timing), ends_s)) - member.done_s
        begin_s = end_s
        if until_s > 0 and from_s < ends_s - member.done_s:
            memory_mib = peak if phase.memory_mib is None else phase.memory_mib
            found.append(PhaseInterval(from_s, until_s / slowest, memory_mib))
    # Work after the profile's end is done in its last phase.
    return found or [PhaseInterval(0.0, math.inf, peak)]


def needed_mib(
    jobs: Sequence[Sequence[PhaseInterval]], headroom: Headroom, times: float | None = None
) -> float:
    """Return the maximum memory of the group at any time, over all phases in which members may be.

    See Headroom.needed_mib for `times`.
    """
    moments = sorted({stay.from_s for job in jobs for stay in job})
    return max((headroom.needed_mib(at_most(jobs, moment), times) for moment in moments), default=0.0)


def at_most(jobs: Sequence[Sequence[PhaseInterval]], moment: float) -> list[float]:
    """Return the memory of each job that may run at this moment, in its largest possible phase."""
    each = []
    for job in jobs:
        there = [stay.memory_mib for stay in job if stay.from_s <= moment < stay.until_s]
        if there:
            each.append(max(there))
    return each
