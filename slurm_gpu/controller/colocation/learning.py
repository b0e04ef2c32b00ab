"""Observe the jobs that agreed to share, and update the store with the results of their runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.colocation.evidence import EndedCorun
from slurm_gpu.controller.colocation.job_history import CorunHistory, RunKey
from slurm_gpu.controller.colocation.store import ColocationStore, KeyProfile
from slurm_gpu.slurm.queue import JobPhase

log = logging.getLogger("slurm-gpuctld")

# Time after the end of a run within which its node is expected to report the results.
_FORGOTTEN_AFTER_S = 600.0
# Minimum run time from which the duration of the work is learned.
_LEAST_ALONE_S = 2
# A run did the usual work if the work estimated from its utilisation differs from the usual work by at most
# this factor, in either direction.
_SAME_WORK = 1.25


class Learning:
    """Stores the histories of running jobs, and of ended jobs that are not yet evaluated."""

    def __init__(self, store: ColocationStore, began_s: float) -> None:
        self._store, self._began_s = store, began_s
        self.running: dict[RunKey, CorunHistory] = {}
        self.ended: dict[RunKey, CorunHistory] = {}
        self.over: dict[RunKey, CorunHistory] = {}
        """Ended runs that `settle` has not processed yet."""

    def update(
        self, agreed: Mapping[int, Agreed], co_runners: Mapping[int, Sequence[int]], now_s: float
    ) -> None:
        """Update the running jobs; `co_runners` lists the jobs on the GPU of each job."""
        running: dict[RunKey, CorunHistory] = {}
        for job_id, one in agreed.items():
            if one.job.phase is not JobPhase.RUNNING or one.job.start_s is None:
                continue
            key = RunKey(job_id, one.job.start_s)
            course = self.running.get(key)
            if course is None:
                course = CorunHistory(one.key, one.job.start_s, is_whole=one.job.start_s >= self._began_s)
            if job_id in co_runners:
                others = [agreed[other] for other in co_runners[job_id] if other != job_id]
                awake = (other.key for other in others if not other.job.is_suspended)
                course.seen(now_s, awake, is_suspended=one.job.is_suspended)
                course.is_whole &= not any(other.job.is_suspended for other in others)
            running[key] = course
        for key, course in self.running.items():
            if key not in running:
                ended = agreed.get(key.job_id)
                reported_s = ended.job.end_s if ended and ended.job.phase is JobPhase.ENDED else None
                course.end_s = now_s if reported_s is None else reported_s
                self.over[key] = course
        self.running = running

    def missed(self, one: Agreed, co_runners: Sequence[str]) -> None:
        """Record a job that started next to jobs with these keys and ended before it was observed."""
        if one.job.start_s is None:
            return
        course = CorunHistory(one.key, one.job.start_s, end_s=one.job.end_s)
        course.seen(one.job.start_s, co_runners)
        self.over[RunKey(one.job.job_id, one.job.start_s)] = course

    def settle(self, states: Mapping[int, str]) -> dict[RunKey, CorunHistory]:
        """Process ended runs by their state in Slurm; return the runs that failed next to co-runners."""
        failed: dict[RunKey, CorunHistory] = {}
        for key, course in self.over.items():
            state = states.get(key.job_id)
            if state == "COMPLETED" and course.stretches:
                self.ended[key] = course
            elif state == "FAILED" and course.stretches and course.stretches[-1].others:
                failed[key] = course
        self.over.clear()
        return failed

    def learn(self, ran: Mapping[RunKey, EndedCorun], now_s: float) -> None:
        """Update the store from complete runs, as reported by their nodes."""
        for key, course in list(self.ended.items()):
            if key in ran:
                self._learn(course, ran[key])
                del self.ended[key]
            elif course.end_s is not None and now_s - course.end_s > _FORGOTTEN_AFTER_S:
                del self.ended[key]

    def _learn(self, course: CorunHistory, ran: EndedCorun) -> None:
        if not course.co_runners:
            if course.is_whole and ran.allocated_s >= _LEAST_ALONE_S:
                self._store.ran_alone(course.key, ran.allocated_s, ran.memory_frac, ran.util_frac, ran.idlest)
                log.info(
                    "%s ran alone for %.1f s with %.0f %% of GPU memory",
                    course.key,
                    ran.allocated_s,
                    100 * ran.memory_frac,
                )
            return
        alone = self._store.profiles.get(course.key)
        if alone is None:
            return
        work_s = work_of(ran, alone)
        for other, speed in course.speeds(work_s, ran.allocated_s, self._store.speed).items():
            log.info("%s ran with %s at %.2f of its speed alone", course.key, other, speed)
            self._store.ran_with(course.key, other, speed)


def work_of(ran: EndedCorun, alone: KeyProfile) -> float:
    """Return the work of a run in seconds of running alone.

    The work is the mean run time of jobs with the same key when they run alone. If the run apparently did a
    different amount of work, the result is an estimate from utilisation.
    """
    if ran.util_frac is None or not alone.util_frac:
        return alone.alone_s
    by_use_s = ran.allocated_s * min(1.0, ran.util_frac / alone.util_frac)
    is_same = by_use_s / _SAME_WORK <= alone.alone_s <= by_use_s * _SAME_WORK
    return alone.alone_s if is_same else by_use_s
