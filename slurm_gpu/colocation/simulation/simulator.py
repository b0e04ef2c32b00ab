"""Simulate jobs that share GPUs according to a planner's decisions.

The simulation is event-driven. Between two events, the jobs and their phases do not change, so their speeds
(`world.World`) are constant. Memory is a hard limit at every moment: if jobs would exceed it, the job that
started last is killed. It waits again after `requeue_s` and restarts from its beginning. The simulation is
deterministic: the same jobs and planner produce the same log.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.colocation.planner import Member, Planner, PlannerGpu, PlannerView, Start, wake_s
from slurm_gpu.colocation.simulation.outcome import (
    SharingEvent,
    SharingOutcome,
    SharingTransition,
    StretchTally,
)
from slurm_gpu.colocation.simulation.sharing import (
    PhaseProgress,
    SharedGpu,
    SharingGuard,
    SharingObserver,
)
from slurm_gpu.colocation.simulation.world import World


@dataclass(frozen=True, slots=True)
class SharingJob:
    """One job. Its number is its index in the simulated sequence."""

    application: int
    """Index into the world's profiles."""
    work_s: float
    """Work in seconds of running alone.

    A job that is longer than its profile remains in the last phase; a shorter job ends within the profile.
    """
    submit_s: float = 0.0
    memory_factor: float = 1.0
    """The job's memory in every phase, relative to that of its application."""


def simulate(
    world: World,
    jobs: Sequence[SharingJob],
    planner: Planner,
    *,
    n_gpus: int = 1,
    requeue_s: float = 30.0,
    watcher: SharingObserver | None = None,
    guard: SharingGuard | None = None,
) -> SharingOutcome:
    """Run all jobs to their end; `watcher` receives every stretch on every GPU, and every kill.

    `guard` checks the jobs that share a GPU once after each start or end of one of these jobs. A job that the
    guard requeues waits for `requeue_s` and restarts from its beginning.

    Raise ValueError with the planner's name if the planner starts a job that is not waiting, or starts
    nothing while jobs wait and every GPU is idle. Also raise ValueError if a job does not fit into an empty
    GPU.
    """
    if n_gpus < 1:
        raise ValueError(f"the number of GPUs must be 1 or more, not {n_gpus}")
    if not requeue_s > 0:
        raise ValueError(f"requeue_s must be more than 0, not {requeue_s}")
    for number, job in enumerate(jobs):
        _check(number, job, world)
    model = _SharingModel(world, jobs, planner, n_gpus, requeue_s, watcher, guard)
    model.run()
    return model.outcome()


def _check(number: int, job: SharingJob, world: World) -> None:
    if not 0 <= job.application < len(world.profiles):
        raise ValueError(
            f"job {number} has application {job.application}, but indices end at {len(world.profiles) - 1}"
        )
    for name, good in (
        ("work_s", 0 < job.work_s < math.inf),
        ("memory_factor", 0 <= job.memory_factor < math.inf),
        ("submit_s", math.isfinite(job.submit_s)),
    ):
        if not good:
            raise ValueError(f"job {number} has {name} {getattr(job, name)}")


class _SharingModel:
    def __init__(
        self,
        world: World,
        jobs: Sequence[SharingJob],
        planner: Planner,
        n_gpus: int,
        requeue_s: float,
        watcher: SharingObserver | None,
        guard: SharingGuard | None,
    ) -> None:
        self._world, self._jobs, self._planner = world, jobs, planner
        self._requeue_s, self._watcher, self._guard = requeue_s, watcher, guard
        self._check_s = [math.inf] * n_gpus
        """The time of the guard's next check, by GPU."""
        self._gpus = [SharedGpu(world, gpu) for gpu in range(n_gpus)]
        self._waiting: dict[int, Member] = {}
        self._coming = [(job.submit_s, number, SharingTransition.SUBMIT) for number, job in enumerate(jobs)]
        """A heap of future submissions and requeues, ordered by time."""
        heapq.heapify(self._coming)
        self._kills = np.zeros(len(jobs), dtype=np.int32)
        self._separations = np.zeros(len(jobs), dtype=np.int32)
        self._log: list[SharingEvent] = []
        self._tally = StretchTally(world)
        self._wake_s = math.inf
        """The time of the planner's next call if no event occurs earlier."""

    def run(self) -> None:
        while (now_s := self._next_s()) < math.inf:
            if self._happen(now_s):
                self._plan(now_s)

    def outcome(self) -> SharingOutcome:
        return self._tally.outcome(
            len(self._gpus),
            np.array([job.submit_s for job in self._jobs], dtype=np.float64),
            np.array([job.work_s for job in self._jobs], dtype=np.float64),
            self._kills,
            self._separations,
            self._log,
        )

    def _next_s(self) -> float:
        return min(
            min(gpu.next_s for gpu in self._gpus),
            min(self._check_s),
            self._coming[0][0] if self._coming else math.inf,
            self._wake_s,
        )

    def _happen(self, now_s: float) -> bool:
        """Process all events of this moment except starts; return whether the planner must decide."""
        changed = self._wake_s <= now_s
        for index, gpu in enumerate(self._gpus):
            if gpu.next_s <= now_s:
                self._pass_time(gpu, now_s)
                done, began = gpu.end_phases(now_s)
                for course in done:
                    self._write(now_s, SharingTransition.END, course.member.job, index)
                for course in began:
                    self._write(now_s, SharingTransition.PHASE, course.member.job, index)
                killed = self._settle(index, now_s)
                changed = changed or bool(done) or killed
            if self._check_s[index] <= now_s:
                self._check_sharing(index, now_s)
                changed = True
        while self._coming and self._coming[0][0] <= now_s:
            _, number, why = heapq.heappop(self._coming)
            job = self._jobs[number]
            self._waiting[number] = Member(
                number,
                job.application,
                job.work_s,
                0.0,
                job.submit_s,
                int(self._kills[number] + self._separations[number]),
            )
            self._write(now_s, why, number)
            changed = True
        return changed

    def _plan(self, now_s: float) -> None:
        """Call the planner until it starts nothing, and store when it must be called again."""
        self._wake_s = math.inf
        while self._waiting:
            starts = self._planner.choose(self._view(now_s))
            if not starts:
                if not any(gpu.courses for gpu in self._gpus):
                    raise ValueError(
                        f"planner {self._planner.name} starts nothing at {now_s:g} s, while "
                        f"{len(self._waiting)} jobs wait and every GPU is idle"
                    )
                self._wake_s = wake_s(self._planner)
                if not self._wake_s > now_s:
                    raise ValueError(
                        f"planner {self._planner.name} requests its next call at {self._wake_s:g} s, "
                        f"which is not after {now_s:g} s"
                    )
                return
            on = sorted(self._gpus_of(starts))
            for index in on:
                self._pass_time(self._gpus[index], now_s)
            for start in starts:
                self._start(start, now_s)
            for index in on:
                self._settle(index, now_s)

    def _gpus_of(self, starts: Sequence[Start]) -> set[int]:
        for start in starts:
            if not 0 <= start.gpu < len(self._gpus):
                raise ValueError(
                    f"planner {self._planner.name} starts jobs on GPU {start.gpu}, "
                    f"but indices end at {len(self._gpus) - 1}"
                )
            if not start.jobs:
                raise ValueError(f"planner {self._planner.name} starts no job on GPU {start.gpu}")
        return {start.gpu for start in starts}

    def _view(self, now_s: float) -> PlannerView:
        return PlannerView(
            now_s,
            tuple(sorted(self._waiting.values(), key=lambda one: (one.submit_s, one.job))),
            tuple(
                PlannerGpu(tuple(gpu.member(course, now_s) for course in gpu.courses)) for gpu in self._gpus
            ),
        )

    def _start(self, start: Start, now_s: float) -> None:
        for number in start.jobs:
            member = self._waiting.pop(number, None)
            if member is None:
                raise ValueError(f"planner {self._planner.name} starts job {number}, which is not waiting")
            job = self._jobs[number]
            profile = self._world.profiles[job.application]
            self._gpus[start.gpu].courses.append(PhaseProgress.of(member, profile, now_s, job.memory_factor))
            self._write(now_s, SharingTransition.START, number, start.gpu)

    def _settle(self, index: int, now_s: float) -> bool:
        """Remove the jobs that do not fit and continue the others; return whether any were removed."""
        gpu = self._gpus[index]
        before = list(gpu.courses)
        killed = gpu.settle(now_s)
        shares = self._guard is not None and len(gpu.courses) > 1
        self._check_s[index] = now_s + self._guard.after_s if self._guard and shares else math.inf
        for course in killed:
            member = gpu.member(course, now_s)
            self._kills[member.job] += 1
            self._write(now_s, SharingTransition.OUT_OF_MEMORY, member.job, index)
            heapq.heappush(self._coming, (now_s + self._requeue_s, member.job, SharingTransition.REQUEUE))
            if self._watcher is not None:
                together = [gpu.member(one, now_s) for one in before]
                self._watcher.ran_out(index, now_s, together, member)
                before.remove(course)
        return bool(killed)

    def _check_sharing(self, index: int, now_s: float) -> None:
        """Requeue a job if the guard separates the jobs of this GPU."""
        gpu = self._gpus[index]
        self._pass_time(gpu, now_s)
        members = [gpu.member(one, now_s) for one in gpu.courses]
        number = None if self._guard is None else self._guard.requeues(members)
        if number is not None:
            gpu.courses = [one for one in gpu.courses if one.member.job != number]
            self._separations[number] += 1
            self._write(now_s, SharingTransition.SEPARATED, number, index)
            heapq.heappush(self._coming, (now_s + self._requeue_s, number, SharingTransition.REQUEUE))
        self._settle(index, now_s)
        if number is None:
            self._check_s[index] = math.inf

    def _pass_time(self, gpu: SharedGpu, now_s: float) -> None:
        """Record the time since the last change as a stretch."""
        stretch = gpu.stretch(now_s)
        if stretch.ran and stretch.to_s > stretch.from_s:
            self._tally.add(stretch)
            if self._watcher is not None:
                self._watcher.ran(stretch)

    def _write(self, now_s: float, what: SharingTransition, job: int, gpu: int = -1) -> None:
        self._log.append(SharingEvent(now_s, what, job, gpu))
