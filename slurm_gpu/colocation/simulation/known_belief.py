"""Define a belief that consists of the true values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.simulation.sharing import look_ahead
from slurm_gpu.colocation.simulation.world import World
from slurm_gpu.colocation.speeds.groups import keeps

_JUST_MORE = 1 + 1e-9


class KnownBelief:
    """See planner.Belief; `headroom` is additional memory, as a fraction of each job's memory."""

    def __init__(
        self, world: World, *, most_together: int = 2, cap: float = math.inf, headroom: float = 0.0
    ) -> None:
        self.world, self.most_together, self.cap, self.headroom = world, most_together, cap, headroom
        self._speeds: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._meetings: dict[tuple[int, ...], tuple[bool, ...]] = {}
        self._peaks_mib: dict[int, float] = {}
        self._fit: dict[tuple[tuple[int, float, float], ...], bool] = {}
        self._ends_s: dict[tuple[tuple[int, float, float], ...], float] = {}
        self._kept: dict[tuple[tuple[int, float, float, float], ...], bool] = {}

    def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the mean speeds over whole runs if any phase may overlap any other.

        The means assume that each application runs through its phases many times during each phase of the
        others.
        """
        known = self._speeds.get(applications)
        if known is None:
            known = over_phases(self.world, applications)
            for order in permutations(range(len(applications))):
                in_order = tuple(applications[one] for one in order)
                self._speeds[in_order] = tuple(known[one] for one in order)
        return known

    def fits(self, members: Sequence[Member]) -> bool:
        """See planner.Belief; the result is exact if no other job joins."""
        key = tuple(sorted((one.application, one.done_s, one.left_s) for one in members))
        known = self._fit.get(key)
        if known is None:
            known = self._fit[key] = self._peaks_fit(members) or (
                len(members) > 1 and look_ahead(self.world, members, 1 + self.headroom) is not None
            )
        return known

    def forget(self) -> None:
        """Clear all caches; this is necessary after the world has changed."""
        self._peaks_mib.clear()
        for known in (self._speeds, self._meetings, self._fit, self._ends_s, self._kept):
            known.clear()

    def _peaks_fit(self, members: Sequence[Member]) -> bool:
        """Check quickly whether the memory peaks of all jobs fit together."""
        peaks_mib = sum([self._peak_mib(one.application) for one in members])
        return peaks_mib * (1 + self.headroom) <= self.world.capacity_mib

    def _peak_mib(self, application: int) -> float:
        """Return the peak memory of an application; 0 if it is unknown."""
        known = self._peaks_mib.get(application)
        if known is None:
            peak_mib = self.world.profiles[application].peak("memory_mib")
            known = self._peaks_mib[application] = 0.0 if peak_mib is None else peak_mib
        return known

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief; the cap holds until the end of each job if no other job joins.

        Later joins are checked in the same way, so the cap always holds. Jobs do not share if every overlap
        of their phases exceeds the cap. A pair of applications with a single phase each therefore never runs
        together above the cap.
        """
        if len(members) < 2:
            return True
        if len(members) > self.most_together:
            return False
        applications = tuple(one.application for one in members)
        if not all(speed > 0 for speed in self.speeds(applications)):
            return False
        if math.isinf(self.cap):
            return self.fits(members)
        meetings = self._meetings_of(applications)
        if all(meetings):
            return self.fits(members)
        return any(meetings) and self._keeps_cap(members)

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """See planner.Belief: known values are exact."""
        key = tuple(sorted((one.application, one.done_s, one.left_s) for one in members))
        known = self._ends_s.get(key)
        if known is None:
            course = look_ahead(self.world, members, 1 + self.headroom)
            known = self._ends_s[key] = math.inf if course is None else course[-1].to_s if course else 0.0
        return known

    def _meetings_of(self, applications: tuple[int, ...]) -> tuple[bool, ...]:
        """Return one value per possible overlap of the applications' phases: whether it respects the cap."""
        known = self._meetings.get(applications)
        if known is None:
            profiles = [self.world.profiles[one] for one in applications]
            known = self._meetings[applications] = tuple(
                keeps(self.world.speeds(tuple(zip(applications, phases, strict=True))), self.cap)
                for phases in product(*(range(len(profile.phases)) for profile in profiles))
            )
        return known

    def _keeps_cap(self, members: Sequence[Member]) -> bool:
        """Return whether the jobs fit and no job's whole run exceeds the cap."""
        key = tuple(sorted((one.application, one.done_s, one.left_s, one.lost_s) for one in members))
        known = self._kept.get(key)
        if known is None:
            known = self._kept[key] = self._run_within_cap(members)
        return known

    def _run_within_cap(self, members: Sequence[Member]) -> bool:
        numbered = [replace(one, job=number) for number, one in enumerate(members)]
        course = look_ahead(self.world, numbered, 1 + self.headroom)
        if course is None:
            return False
        end_s = {one.job: stretch.to_s for stretch in course for one in stretch.ran}
        return all(
            one.done_s + one.lost_s + end_s.get(one.job, 0.0)
            <= self.cap * (one.done_s + one.left_s) * _JUST_MORE
            for one in numbered
        )


def over_phases(world: World, applications: tuple[int, ...]) -> tuple[float, ...]:
    """Return each application's speed over its whole run, averaged over the phases of the others.

    The speed of a phase is the mean of its speeds with all phases of the others, weighted by the durations of
    those phases when running alone. All speeds are 0 if any phases cannot run together.
    """
    if len(applications) == 1:
        return (1.0,)
    profiles = [world.profiles[one] for one in applications]
    n = len(applications)
    mean = [[0.0] * len(profile.phases) for profile in profiles]
    for phases in product(*(range(len(profile.phases)) for profile in profiles)):
        speeds = world.speeds(tuple(zip(applications, phases, strict=True)))
        if 0 in speeds:
            return (0.0,) * n
        parts = [
            profile.phases[at].seconds / profile.seconds for profile, at in zip(profiles, phases, strict=True)
        ]
        for i in range(n):
            others = math.prod(parts[:i] + parts[i + 1 :])
            mean[i][phases[i]] += others * min(speeds[i], 1.0)
    return tuple(
        profile.seconds / sum(phase.seconds / speed for phase, speed in zip(profile.phases, row, strict=True))
        for profile, row in zip(profiles, mean, strict=True)
    )
