"""Estimate speeds and memory for a planner from profiles and from measurements of jobs that shared GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from bench.colocation_experience import Experience, SpeedStatistics, contains
from bench.colocation_memory import Headroom, at_most, needed_mib, phase_intervals
from slurm_gpu.colocation.co_runner_views import speed_with_all, views_of
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile
from slurm_gpu.colocation.profiles.traits import Floats, Traits
from slurm_gpu.colocation.simulation.sharing import SharingStretch
from slurm_gpu.colocation.speeds.groups import ends_s
from slurm_gpu.colocation.speeds.predictor import Predicted, predict

_ONE_RUN_DEVIATION = 0.02
"""The assumed standard deviation of a pair's speed between runs, before the pair has been measured."""
_REFUSED_PART = 0.25
"""An application with unknown memory that failed with this fraction of co-runners gets no new ones."""
_MANY = 4
_OUTDONE = 5
"""Number of runs of a larger pair, for each failure of a pair, after which the pair may be tried again."""
_SLOWEST = 0.02
_USES = ("util", "sm", "pcie")

_OfView = Callable[[int, tuple[int, ...]], float]


class LearnedBelief:
    """A planner.Belief with measured speeds of pairs, and cautious predictions for other pairs.

    `experience` and `headroom` may grow; `learn` fits the predictor to them, within a time limit in seconds.
    With a `cap`, the lower end of the one-sided interval of a pair (`confidence`) must respect the cap.
    """

    def __init__(
        self,
        profiles: Sequence[ApplicationProfile],
        capacity_mib: float,
        experience: Experience | None = None,
        headroom: Headroom | None = None,
        *,
        most_together: int = 2,
        cap: float = math.inf,
        confidence: float = 0.95,
        timing: float = 0.1,
        traits: Sequence[Traits] | None = None,
    ) -> None:
        """Set `timing`, the fraction by which phases may vary, and `traits` (default: from the profiles)."""
        if traits is not None and len(traits) != len(profiles):
            raise ValueError(f"{len(profiles)} profiles have {len(traits)} traits")
        self.profiles, self.capacity_mib = list(profiles), capacity_mib
        self.experience = Experience() if experience is None else experience
        self.headroom = Headroom() if headroom is None else headroom
        self.most_together, self.cap = most_together, cap
        self._confidence, self._timing = confidence, timing
        self._traits = [traits_of_profile(one) for one in profiles] if traits is None else list(traits)
        self.learn()

    def learn(self) -> None:
        """Fit the predictor to all measurements so far."""
        speeds, runs = self.experience.pairs(len(self.profiles))
        self.predicted: Predicted = predict(self._traits, speeds, runs, _prior(self.profiles))
        self._lower = self.predicted.lower(self._confidence)
        self._deviations = _deviations(self._confidence)
        self._speeds: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._slowest: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._fit: dict[tuple[tuple[int, float, float], ...], bool] = {}
        self._margins = 0.0, 0.0
        self._peaks = [one.peak("memory_mib") for one in self.profiles]

    def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the likeliest speeds (see planner.Belief); 0 if the applications probably do not fit."""
        known = self._speeds.get(applications)
        if known is None:
            known = self._speeds[applications] = self._all(applications, self._likeliest)
        return known

    def slowest(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the lower ends of the intervals of `speeds`."""
        known = self._slowest.get(applications)
        if known is None:
            known = self._slowest[applications] = self._all(applications, self._lowest)
        return known

    def fits(self, members: Sequence[Member]) -> bool:
        """See planner.Belief: check each phase in which a job may be, given its possible speeds.

        If the memory of a member is unknown, the group must have run together. Otherwise it must be predicted
        to run, and no similar group may have failed.
        """
        if len(members) < 2:
            return True
        # Newly learned errors apply immediately.
        margins = self.headroom.part.value, self.headroom.group_mib.value
        if margins != self._margins:
            self._margins = margins
            self._fit.clear()
        key = tuple(sorted((one.application, one.done_s, one.left_s) for one in members))
        known = self._fit.get(key)
        if known is None:
            known = self._fit[key] = self._fits(members)
        return known

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief."""
        if len(members) < 2:
            return True
        if len(members) > self.most_together:
            return False
        applications = tuple(one.application for one in members)
        speeds = self.speeds(applications) if math.isinf(self.cap) else self.slowest(applications)
        return all(speed > 0 and speed * self.cap >= 1 for speed in speeds) and self.fits(members)

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """See planner.Belief."""
        if not self.fits(members):
            return math.inf
        applications = [one.application for one in members]
        return ends_s(
            [one.left_s for one in members],
            lambda some: self.slowest(tuple(applications[one] for one in some)),
        )

    def ran(self, stretch: SharingStretch) -> None:
        """Add a measurement to experience and headroom, for `learn`; see sharing.SharingObserver."""
        group = [one.application for one in stretch.ran]
        self.experience.add(group, [one.speed for one in stretch.ran], stretch.to_s - stretch.from_s)
        each = [one.memory_mib for one in stretch.ran if one.memory_mib is not None]
        if stretch.memory_mib is not None and len(each) == len(group) > 1:
            self.headroom.add_group(each, stretch.memory_mib)
        for one in stretch.ran:
            expected = self.profiles[one.application].phases[one.phase].memory_mib
            if expected is not None and one.memory_mib is not None:
                self.headroom.add_job(expected, one.memory_mib)

    def ran_out(self, gpu: int, at_s: float, together: Sequence[Member], killed: Member) -> None:
        """Record that a group ran out of memory; see sharing.SharingObserver.

        If its memory is known, the group may share again when it is expected to use less than at this time.
        Otherwise, it may share again after similar groups of at least its size have run several times.
        """
        group = [one.application for one in together]
        jobs = [phase_intervals(self.profiles[one.application], one, 1.0, self._timing) for one in together]
        known = [job for job in jobs if job is not None]
        expected_mib = sum(at_most(known, 0.0))
        if len(known) == len(jobs) and 0 < expected_mib < self.capacity_mib < math.inf:
            self.headroom.add_out_of_memory(group, expected_mib, self.capacity_mib)
        else:
            self.experience.refuse(group)
        self._speeds.clear()
        self._slowest.clear()
        self._fit.clear()

    def _all(self, applications: tuple[int, ...], of_pair: _OfView) -> tuple[float, ...]:
        if len(applications) == 1:
            return (1.0,)
        if self._cannot_share(applications):
            return (0.0,) * len(applications)
        return tuple(of_pair(one, others) for one, others in views_of(applications))

    def _likeliest(self, one: int, others: tuple[int, ...]) -> float:
        seen = self.experience.seen(one, others)
        if seen is not None:
            return max(seen.speed, _SLOWEST)
        if len(others) == 1:
            return float(self.predicted.speed[one, others[0]])
        return speed_with_all([self._likeliest(one, (other,)) for other in others])

    def _lowest(self, one: int, others: tuple[int, ...]) -> float:
        seen = self.experience.seen(one, others)
        if seen is not None:
            return max(seen.speed - self._deviations * _error(seen), _SLOWEST)
        if len(others) == 1:
            return float(self._lower[one, others[0]])
        return speed_with_all([self._lowest(one, (other,)) for other in others])

    def _fits(self, members: Sequence[Member]) -> bool:
        applications = tuple(one.application for one in members)
        peaks = [self._peaks[one] for one in applications]
        known = [peak for peak in peaks if peak is not None]
        if len(known) < len(peaks):
            return not self._cannot_share(applications)
        if self._refused(applications):
            return False
        times = self.headroom.times(applications)
        if self.headroom.needed_mib(known, times) <= self.capacity_mib:
            return True
        slowest = self.slowest(applications)
        jobs = [
            phase_intervals(self.profiles[one.application], one, speed, self._timing)
            for one, speed in zip(members, slowest, strict=True)
            if speed > 0
        ]
        known_jobs = [job for job in jobs if job is not None]
        return len(known_jobs) == len(members) and (
            needed_mib(known_jobs, self.headroom, times) <= self.capacity_mib
        )

    def _cannot_share(self, applications: tuple[int, ...]) -> bool:
        if self._refused(applications):
            return True
        if any(self._peaks[one] is None for one in applications):
            return any(
                self._resembles_refused(one, other)
                for at, one in enumerate(applications)
                for other in applications[at + 1 :]
                if self.experience.seen(one, (other,)) is None
            )
        return False

    def _refused(self, applications: tuple[int, ...]) -> bool:
        """Return whether the group, or a part of it, ran out of memory, and no later run overrides that."""
        return any(
            contains(applications, group) and not self._is_overridden(group, times)
            for group, times in self.experience.all_refused()
        )

    def _is_overridden(self, refused: tuple[int, ...], times: int) -> bool:
        """Return whether a similar pair of at least this size ran _OUTDONE times as often as the pair failed.

        A table lists pairs that never fit, so other entries of the table do not override them.
        """
        return len(refused) == 2 and any(
            seen.runs >= _OUTDONE * times and self._no_smaller_pair((one, *others), refused)
            for one, others, seen in self.experience.all_seen()
            if len(others) == 1
        )

    def _resembles_refused(self, one: int, other: int) -> bool:
        """Return whether a similar, smaller pair failed, or one of the two failed with many co-runners."""
        refused = [
            group
            for group, times in self.experience.all_refused()
            if len(group) == 2 and not self._is_overridden(group, times)
        ]
        if any(self._no_smaller_pair((one, other), group) for group in refused):
            return True
        for who in (one, other):
            could_not = sum(who in group for group in refused)
            could = sum(
                self.experience.seen(who, (partner,)) is not None for partner in range(len(self.profiles))
            )
            if could_not + could >= _MANY and could_not >= _REFUSED_PART * (could_not + could):
                return True
        return False

    def _no_smaller_pair(self, pair: tuple[int, ...], than: tuple[int, ...]) -> bool:
        """Return whether `pair` is at least as large as `than`, with the members in either order."""
        return any(
            self._no_smaller(pair[0], mine) and self._no_smaller(pair[1], theirs)
            for mine, theirs in (than, than[::-1])
        )

    def _no_smaller(self, one: int, than: int) -> bool:
        mine, theirs = self._traits[one], self._traits[than]
        if one == than:
            return True
        if mine.family != theirs.family or mine.size is None or theirs.size is None:
            return False
        return mine.size >= theirs.size


def traits_of_profile(profile: ApplicationProfile) -> Traits:
    """Return the name, the input, and the mean GPU use when running alone."""
    return Traits(profile.application, profile.input_size, tuple(profile.mean(use) for use in _USES))


def _prior(profiles: Sequence[ApplicationProfile]) -> Floats:
    """Return (n, n) speeds of jobs that take turns: 1 while their total use is below 1; NaN if unknown."""
    util = np.array([math.nan if (mean := one.mean("util")) is None else mean for one in profiles])
    together = util[:, None] + util
    return np.asarray(1 / np.maximum(together, 1.0))


def _deviations(confidence: float) -> float:
    """Return the quantile of a normal distribution for `confidence` (0 to 1)."""
    return max(NormalDist().inv_cdf(min(max(confidence, 0.5), 0.9999)), 0.0)


def _error(seen: SpeedStatistics) -> float:
    """Return the standard error of a mean; a single run has no standard deviation."""
    variance = (seen.spread**2 * (seen.runs - 1) + _ONE_RUN_DEVIATION**2) / seen.runs
    return math.sqrt(variance / seen.runs)
