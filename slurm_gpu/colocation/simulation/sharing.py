"""Simulate the jobs on one GPU; their speeds depend on one another's phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile
from slurm_gpu.colocation.simulation.world import World


class Work:
    """Remaining work of a running job, in seconds of running alone (speed 1)."""

    __slots__ = ("_left_s", "_since_s", "speed")

    def __init__(self, left_s: float, now_s: float) -> None:
        self._left_s, self.speed, self._since_s = left_s, 1.0, now_s

    def left_s(self, now_s: float) -> float:
        """Return the remaining work at `now_s`, which must not be before the last change."""
        return max(self._left_s - self.speed * (now_s - self._since_s), 0.0)

    def change(self, now_s: float, speed: float) -> float:
        """Continue at another speed, which must be above 0, and return when the work will be done."""
        self._left_s, self.speed, self._since_s = self.left_s(now_s), speed, now_s
        return now_s + self._left_s / speed


class RanPart(NamedTuple):
    """The phase, speed and memory of one job in a stretch."""

    job: int
    application: int
    phase: int
    speed: float
    memory_mib: float | None


class SharingStretch(NamedTuple):
    """A period in which the same jobs ran on a GPU in the same phases."""

    gpu: int
    from_s: float
    to_s: float
    ran: tuple[RanPart, ...]
    """The jobs, in the order of their starts."""
    memory_mib: float | None
    """Combined memory of all jobs, as a GPU reports it; None if unknown."""


class SharingObserver(Protocol):
    """An observer of simulated GPUs that measures or learns like a monitor of real GPUs."""

    def ran(self, stretch: SharingStretch) -> None:
        """Record a stretch that has ended."""
        ...

    def ran_out(self, gpu: int, at_s: float, together: Sequence[Member], killed: Member) -> None:
        """Record that the jobs `together`, including `killed`, did not fit into the GPU's memory."""
        ...


class SharingGuard(Protocol):
    """A check of jobs that share a GPU, like the one in slurm-gpuctld."""

    after_s: float
    """Time from the last start or end on a GPU to the check."""

    def requeues(self, members: Sequence[Member]) -> int | None:
        """Return the number of the job that must leave the GPU; None if all jobs may continue."""
        ...


@dataclass(slots=True, eq=False)
class PhaseProgress:
    """The progress of a job through its phases.

    Work after the profile's end belongs to the last phase.
    """

    member: Member
    memory_factor: float
    """The job's memory, relative to that of its profile."""
    phase: int
    work: Work
    """Remaining work in this phase."""
    later_s: float
    """Work after this phase."""
    began_s: float
    """The time when the job started, computed from its progress and lost time."""
    ends_at_s: float = math.inf
    """The time when the phase ends at the current speed."""
    speed: float = 1.0

    @classmethod
    def of(
        cls, member: Member, profile: ApplicationProfile, now_s: float, memory_factor: float = 1.0
    ) -> PhaseProgress:
        """Return the progress of a member."""
        phase = profile.phase_at(member.done_s)
        work, later_s = _split(profile, phase, member.left_s, member.done_s, now_s)
        return cls(member, memory_factor, phase, work, later_s, now_s - member.done_s - member.lost_s)

    def left_s(self, now_s: float) -> float:
        """Return the remaining work of the whole job."""
        return self.later_s + self.work.left_s(now_s)

    def next_phase(self, profile: ApplicationProfile, now_s: float) -> bool:
        """Advance to the next phase, or return False if the job is done."""
        if not self.later_s > 0:
            return False
        self.phase += 1
        self.work, self.later_s = _split(
            profile, self.phase, self.later_s, profile.ends_s[self.phase - 1], now_s
        )
        return True


def _split(
    profile: ApplicationProfile, phase: int, left_s: float, done_s: float, now_s: float
) -> tuple[Work, float]:
    """Return the remaining work in this phase, and the seconds of work after it."""
    here_s = left_s
    if phase + 1 < len(profile.phases):
        here_s = min(left_s, profile.ends_s[phase] - done_s)
    return Work(here_s, now_s), left_s - here_s


class SharedGpu:
    """One GPU and its jobs, which change only at events."""

    def __init__(self, world: World, gpu: int = 0, now_s: float = 0.0) -> None:
        self._world, self._gpu, self._now_s = world, gpu, now_s
        self._memory: tuple[float | None, ...] = ()
        self.courses: list[PhaseProgress] = []
        """The jobs, in the order of their starts."""
        self.next_s = math.inf
        """The time when the next phase or job ends."""

    def stretch(self, now_s: float) -> SharingStretch:
        """Return the stretch since the last change."""
        known = [memory for memory in self._memory if memory is not None]
        return SharingStretch(
            self._gpu,
            self._now_s,
            now_s,
            tuple(
                RanPart(one.member.job, one.member.application, one.phase, one.speed, memory)
                for one, memory in zip(self.courses, self._memory, strict=True)
            ),
            sum(known) if known else None,
        )

    def member(self, course: PhaseProgress, now_s: float) -> Member:
        """Return the job's state at this time."""
        was = course.member
        left_s = course.left_s(now_s)
        done_s = was.done_s + was.left_s - left_s
        profile = self._world.profiles[was.application]
        if course.phase + 1 < len(profile.phases):
            # Rounding must not move the job to the next phase before this one has ended.
            done_s = min(done_s, math.nextafter(profile.ends_s[course.phase], 0.0))
        return Member(
            was.job, was.application, left_s, done_s, was.submit_s, was.killed, now_s - course.began_s
        )

    def end_phases(self, now_s: float) -> tuple[list[PhaseProgress], list[PhaseProgress]]:
        """End all phases that are complete; return the jobs that are done, and the jobs in a new phase.

        Jobs that are done are removed from the GPU. The caller must call `settle` afterwards.
        """
        done: list[PhaseProgress] = []
        changed: list[PhaseProgress] = []
        for course in self.courses:
            if course.ends_at_s <= now_s:
                profile = self._world.profiles[course.member.application]
                (changed if course.next_phase(profile, now_s) else done).append(course)
        self.courses = [one for one in self.courses if one not in done]
        return done, changed

    def settle(self, now_s: float) -> list[PhaseProgress]:
        """Remove and return jobs until the others fit together, starting with the job that started last.

        The others continue at new speeds. Raise ValueError if a job does not fit into an empty GPU, or if
        speeds are invalid.
        """
        killed: list[PhaseProgress] = []
        while (speeds := self._speeds()) is None:
            if len(self.courses) == 1:
                raise ValueError(
                    f"job {self.courses[0].member.job} needs more memory than an empty GPU has: "
                    f"{self._world.capacity_mib:g} MiB"
                )
            killed.append(self.courses.pop())
        for course, speed in zip(self.courses, speeds, strict=True):
            course.speed = min(speed, 1.0)
            course.ends_at_s = course.work.change(now_s, course.speed)
        self.next_s = min((one.ends_at_s for one in self.courses), default=math.inf)
        self._now_s = now_s
        return killed

    def _speeds(self) -> tuple[float, ...] | None:
        """Return the speeds of all jobs; None if they cannot run together."""
        self._memory = tuple(self._memory_of(one) for one in self.courses)
        if sum(one for one in self._memory if one is not None) > self._world.capacity_mib:
            return None
        if len(self.courses) < 2:
            return (1.0,) * len(self.courses)
        running = tuple((one.member.application, one.phase) for one in self.courses)
        speeds = self._world.speeds(running)
        if any(speed == 0 for speed in speeds):
            return None
        if len(speeds) != len(running) or not all(speed > 0 for speed in speeds):
            raise ValueError(f"each of {running} must have one speed from 0 to 1, not {speeds}")
        return speeds

    def _memory_of(self, course: PhaseProgress) -> float | None:
        memory = self._world.profiles[course.member.application].phases[course.phase].memory_mib
        return None if memory is None else memory * course.memory_factor


def look_ahead(
    world: World, members: Sequence[Member], memory_factor: float = 1.0
) -> list[SharingStretch] | None:
    """Simulate these jobs to their ends on one GPU without further jobs, and return the stretches.

    The jobs continue from their current progress. Each job uses `memory_factor` times the memory of its
    profile. The result is None if the jobs run out of memory.
    """
    gpu = SharedGpu(world)
    gpu.courses = [
        PhaseProgress.of(one, world.profiles[one.application], 0.0, memory_factor) for one in members
    ]
    stretches: list[SharingStretch] = []
    now_s = 0.0
    while True:
        if gpu.settle(now_s):
            return None
        if not gpu.courses:
            return stretches
        now_s = gpu.next_s
        stretches.append(gpu.stretch(now_s))
        gpu.end_phases(now_s)
