"""Predict the result of an order of starts if the effect of phases on one another is known.

Unlike in `rollout`, the prediction is exact: speeds are those of the overlapping phases, memory and cap are
checked in these phases, and a job need not wait until another ends. A job that may not join at once joins as
soon as no job would run out of memory or exceed the cap as a result. For example, a training job can load its
data while the previous one finishes, although they cannot compute at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.planners.history import NOTICED
from slurm_gpu.colocation.planners.outlook import Outlook
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.speeds.groups import keeps

if TYPE_CHECKING:  # slurm-gpuctld plans without numpy
    from slurm_gpu.colocation.simulation.world import World

# Speed of jobs that run together although the belief does not permit it.
_SLOWEST = 0.01
# Additional delay of a join that waits for the end of a phase, since times are not exact.
_LATER_S = 0.02
# Maximum number of times that a join is delayed to the end of a conflicting phase.
_TRIES = 12
# A spared job takes at most this factor times its duration alone, which is not noticeable.
_SPARED = NOTICED - 1e-4
# Seconds of remaining work below which a phase counts as done.
_DONE_S = 1e-9
# States are equal if their seconds are equal when rounded to this many digits.
_DIGITS = 3


# For each job on a GPU: its sort, the index of its current phase among the remaining ones, the seconds left
# in that phase, and the seconds by which other jobs may still delay it.
State = tuple[tuple[int, int, float, float], ...]


class PhasedRollout(Outlook):
    """See Outlook."""

    def __init__(
        self,
        belief: KnownBelief,
        waiting: Sequence[Member],
        running: Sequence[Sequence[Member]],
        elapsed_s: Sequence[Sequence[float]],
        least_gain: float,
    ) -> None:
        """Create a prediction in which sharing pays if it gains more than `least_gain`."""
        super().__init__(waiting, running, elapsed_s)
        self._belief, self._world, self._least_gain = belief, belief.world, least_gain
        self._most, self._cap = belief.most_together, belief.cap
        self._capacity_mib = self._world.capacity_mib / (1 + belief.headroom)
        self._spares = math.isfinite(self._cap)
        self._codes: list[tuple[tuple[int, int], ...]] = []
        """The remaining phases of each sort of job, as (application, phase)."""
        self._seconds: list[tuple[float, ...]] = []
        """The seconds of each remaining phase, by sort."""
        self._slack_s: list[float] = []
        """The seconds by which other jobs may still delay a job, by sort."""
        for kind in range(len(self._of_kind)):
            member = self._of_kind[kind]
            codes, seconds = _phases_left(self._world, member)
            for cap in (self._cap, min(self._cap, _SPARED)):
                self._codes.append(codes)
                self._seconds.append(seconds)
                self._slack_s.append((cap - 1) * (member.done_s + member.left_s) - member.lost_s)
        self._meeting: dict[tuple[tuple[int, int], ...], tuple[tuple[float, ...], bool, bool]] = {}
        self._some: dict[tuple[int, ...], bool] = {}
        self._waits: dict[tuple[State, int], float] = {}
        self._rolled: dict[tuple[int, ...], tuple[float, float, dict[int, float]]] = {}

    def end_s(self, gpu: int, order: Sequence[int]) -> float:
        """See Outlook."""
        return self._roll(gpu, order)[0]

    def wakes_s(self, gpu: int, order: Sequence[int]) -> float:
        """See Outlook."""
        return self._roll(gpu, order)[1]

    @property
    def spares(self) -> bool:
        """Return whether jobs kept apart are spared (slowed unnoticeably) instead of running alone."""
        return self._spares

    def starts(self, gpu: int, order: Sequence[int]) -> int:
        """See Outlook; the belief must also permit each start."""
        members = [self.members[one] for one in self.here[gpu]]
        state = tuple(self._at_first(self._sort(one)) for one in self.here[gpu])
        at = 0
        while at < len(order) and len(members) < max(self._most, 1):
            job = order[at]
            kind = self._sort(job)
            if members and (
                self._is_apart(job)
                or self._wait_s(state, kind) > 0
                or not self._belief.may_share([*members, self.members[job]])
            ):
                break
            members.append(self.members[job])
            state = (*state, self._at_first(kind))
            at += 1
        return at

    def _sort(self, job: int) -> int:
        """Return the sort of a job: its kind, and whether it is spared or may be slowed up to the cap."""
        return 2 * self._kind[job] + (self._spares and self.apart[job])

    def _is_apart(self, job: int) -> bool:
        """Return whether the job waits for an empty GPU."""
        return not self._spares and self.apart[job]

    def _at_first(self, kind: int) -> tuple[int, int, float, float]:
        return kind, 0, self._seconds[kind][0], self._slack_s[kind]

    def _roll(self, gpu: int, order: Sequence[int]) -> tuple[float, float]:
        """Return when the GPU becomes idle, and when the first job joins if no job ends."""
        kind, apart = self._kind, self.apart
        key = (gpu, *[2 * kind[one] + apart[one] for one in order])
        known = self._rolled.get(key)
        if known is None:
            known = self._rolled[key] = self._run(gpu, order)
        end_s, wakes_s, took_s = known
        jobs = [*self.here[gpu], *order]
        for at, one in took_s.items():
            self.took_s[jobs[at]] = one
        return end_s, wakes_s

    def _run(self, gpu: int, order: Sequence[int]) -> tuple[float, float, dict[int, float]]:
        """Return the result of _roll, and the duration of each job by its index.

        Indices count the running jobs first, then the jobs of the order.
        """
        seconds, codes = self._seconds, self._codes
        n_here, n, most = len(self.here[gpu]), len(order), max(self._most, 1)
        who = list(range(n_here))
        kinds = [self._sort(one) for one in self.here[gpu]]
        sorts = [self._sort(one) for one in order]
        phase = [0] * n_here
        left_s = [seconds[one][0] for one in kinds]
        slack_s = [self._slack_s[one] for one in kinds]
        began_s = [self._began_s[one] for one in self.here[gpu]]
        took_s: dict[int, float] = {}
        now_s, at, wakes_s, asked = 0.0, 0, math.inf, True
        while True:
            wait_s = math.inf
            while at < n and len(kinds) < most:
                kind = sorts[at]
                if kinds:
                    if self._is_apart(order[at]):
                        break
                    state = tuple(
                        (one, step, round(left, _DIGITS), round(slack, _DIGITS))
                        for one, step, left, slack in zip(kinds, phase, left_s, slack_s, strict=True)
                    )
                    wait_s = self._wait_s(state, kind)
                    if wait_s > 0 or not asked:
                        wait_s = max(wait_s, _LATER_S)
                        break
                who.append(n_here + at)
                kinds.append(kind)
                phase.append(0)
                left_s.append(seconds[kind][0])
                slack_s.append(self._slack_s[kind])
                began_s.append(now_s)
                at += 1
                wait_s = math.inf
            if not kinds:
                return now_s, wakes_s, took_s
            if len(kinds) == 1:
                speeds: tuple[float, ...] = (1.0,)
                step_s = left_s[0]
            else:
                speeds = self._meet(tuple([codes[k][step] for k, step in zip(kinds, phase, strict=True)]))[0]
                step_s = min([left / speed for left, speed in zip(left_s, speeds, strict=True)])
            if wait_s < step_s:
                left_s = [left - wait_s * speed for left, speed in zip(left_s, speeds, strict=True)]
                slack_s = [slack - wait_s * (1 - speed) for slack, speed in zip(slack_s, speeds, strict=True)]
                now_s += wait_s
                wakes_s = min(wakes_s, now_s)
                who.append(n_here + at)
                kinds.append(sorts[at])
                phase.append(0)
                left_s.append(seconds[kinds[-1]][0])
                slack_s.append(self._slack_s[kinds[-1]])
                began_s.append(now_s)
                at += 1
                continue
            now_s += step_s
            left_s = [left - step_s * speed for left, speed in zip(left_s, speeds, strict=True)]
            slack_s = [slack - step_s * (1 - speed) for slack, speed in zip(slack_s, speeds, strict=True)]
            asked = False
            for index in range(len(kinds) - 1, -1, -1):
                if left_s[index] > _DONE_S:
                    continue
                phase[index] += 1
                if phase[index] < len(codes[kinds[index]]):
                    left_s[index] = seconds[kinds[index]][phase[index]]
                else:
                    took_s[who[index]] = now_s - began_s[index]
                    asked = True
                    for column in (who, kinds, phase, left_s, slack_s, began_s):
                        del column[index]

    def _wait_s(self, state: State, kind: int) -> float:
        """Return the time until a job of this sort may join and sharing pays.

        The result is math.inf if the job cannot join before a running job changes its phase.
        """
        known = self._waits.get((state, kind))
        if known is None:
            known = self._waits[state, kind] = self._wait(state, kind)
        return known

    def _wait(self, state: State, kind: int) -> float:
        kinds = (*(one for one, _, _, _ in state), kind)
        if not self._ever_may(kinds):
            return math.inf
        speeds = self._meet(tuple([self._codes[one][step] for one, step, _, _ in state]))[0]
        goes_on_s = min(left / speed for (_, _, left, _), speed in zip(state, speeds, strict=True))
        wait_s = 0.0
        for _ in range(_TRIES):
            there = [
                (one, step, left - wait_s * speed, slack - wait_s * (1 - speed))
                for (one, step, left, slack), speed in zip(state, speeds, strict=True)
            ]
            later_s, end_s, shared_s = self._course([*there, self._at_first(kind)])
            if later_s == 0:
                apart_s = self._course([*state])[1] + sum(self._seconds[kind])
                gained_s = apart_s - (wait_s + end_s)
                return wait_s if gained_s > self._least_gain * shared_s else math.inf
            wait_s += later_s + _LATER_S
            if not wait_s < goes_on_s:
                break
        return math.inf

    def _course(self, running: Sequence[tuple[int, int, float, float]]) -> tuple[float, float, float]:
        """Simulate the jobs to their ends if the last one joins now and no job joins later.

        Return by how many seconds the last job joins too early (0 if there is no conflict), when all jobs are
        done, and for how long the last job shares the GPU.
        """
        codes, seconds = self._codes, self._seconds
        kinds = [one for one, _, _, _ in running]
        phase = [step for _, step, _, _ in running]
        left_s = [left for _, _, left, _ in running]
        slack_s = [slack for _, _, _, slack in running]
        slowest = [1.0] * len(running)
        is_there = True  # whether the joining job, always the last one, still runs
        now_s = shared_s = 0.0
        while kinds:
            meeting = tuple([codes[k][step] for k, step in zip(kinds, phase, strict=True)])
            speeds, fits, _ = self._meet(meeting)
            if not fits:
                if not is_there:
                    return math.inf, 0.0, 0.0
                others = self._meet(meeting[:-1])[0]
                return min(map(_quotient, left_s, others)), 0.0, 0.0
            step_s = min(map(_quotient, left_s, speeds))
            now_s += step_s
            if is_there and len(kinds) > 1:
                shared_s += step_s
            for index in range(len(kinds) - 1, -1, -1):
                left_s[index] -= step_s * speeds[index]
                slack_s[index] -= step_s * (1 - speeds[index])
                slowest[index] = min(slowest[index], speeds[index])
                if left_s[index] > _DONE_S:
                    continue
                phase[index] += 1
                if phase[index] < len(codes[kinds[index]]):
                    left_s[index] = seconds[kinds[index]][phase[index]]
                    continue
                if slack_s[index] < -_DONE_S:
                    # Sharing for one second less reduces the loss by at most 1 - the slowest speed.
                    return -slack_s[index] / max(1 - slowest[index], _DONE_S), 0.0, 0.0
                is_there = is_there and index < len(kinds) - 1
                for column in (kinds, phase, left_s, slack_s, slowest):
                    del column[index]
        return 0.0, now_s, shared_s

    def _meet(self, meeting: tuple[tuple[int, int], ...]) -> tuple[tuple[float, ...], bool, bool]:
        """Return the speeds in these phases, and whether the jobs fit together and respect the cap."""
        known = self._meeting.get(meeting)
        if known is None:
            known = self._meeting[meeting] = self._meeting_result(meeting)
        return known

    def _meeting_result(self, meeting: tuple[tuple[int, int], ...]) -> tuple[tuple[float, ...], bool, bool]:
        if len(meeting) < 2:
            return (1.0,) * len(meeting), True, True
        phases = [self._world.profiles[one].phases[phase] for one, phase in meeting]
        speeds = tuple(min(speed, 1.0) for speed in self._world.speeds(meeting))
        memory_mib = sum(phase.memory_mib or 0.0 for phase in phases)
        fits = memory_mib <= self._capacity_mib and all(speed > 0 for speed in speeds)
        return tuple(max(speed, _SLOWEST) for speed in speeds), fits, keeps(speeds, self._cap)

    def _ever_may(self, kinds: tuple[int, ...]) -> bool:
        """Return whether any phases of these jobs' applications may overlap without exceeding the cap."""
        known = self._some.get(kinds)
        if known is None:
            applications = tuple(self._of_kind[one // 2].application for one in kinds)
            phases = (
                [(one, phase) for phase in range(len(self._world.profiles[one].phases))]
                for one in applications
            )
            known = self._some[kinds] = all(speed > 0 for speed in self._belief.speeds(applications)) and any(
                self._meet(meeting)[2] for meeting in product(*phases)
            )
        return known


def _quotient(left_s: float, speed: float) -> float:
    return left_s / speed


def _phases_left(world: World, member: Member) -> tuple[tuple[tuple[int, int], ...], tuple[float, ...]]:
    """Return the phases that the job has yet to run, and the seconds of each.

    Work after the end of its profile belongs to the last phase.
    """
    profile = world.profiles[member.application]
    last = len(profile.phases) - 1
    codes: list[tuple[int, int]] = []
    seconds: list[float] = []
    at_s, left_s = member.done_s, member.left_s
    for phase in range(profile.phase_at(member.done_s), last + 1):
        here_s = left_s if phase == last else min(left_s, profile.ends_s[phase] - at_s)
        if here_s > 0:
            codes.append((member.application, phase))
            seconds.append(here_s)
            at_s, left_s = at_s + here_s, left_s - here_s
    return tuple(codes), tuple(seconds)
