"""Choose which jobs to diagnose next.

The number of simultaneous diagnoses is limited, because for each diagnosis the nodes of a job send windows to
slurm-gpudbd.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationIntervals:
    """Intervals between diagnoses, in seconds."""

    at_once: int = 12
    """Maximum number of simultaneous diagnoses."""
    again_s: float = 30.0
    """Interval after the first diagnosis without a fault; each further such diagnosis doubles it."""
    longest_s: float = 900.0
    found_s: float = 60.0
    """Interval while a fault is reported."""
    worse: float = 1.5
    """A score counts as a change if it exceeds the highest score of a healthy diagnosis by this factor."""
    news_s: float = 240.0
    """A job is diagnosed every `again_s` for this time after a change, because faults emerge gradually."""
    calm_s: float = 30.0
    """Interval at which one job without a suspicious score is diagnosed."""
    calm_again_s: float = 900.0
    wanted_again_s: float = 600.0


@dataclass(slots=True)
class _JobSchedule:
    next_s: float = -math.inf
    judged_s: float = -math.inf
    pause_s: float = 0.0
    well: float = 0.0
    """The highest score of a diagnosis without a fault, excluding diagnoses soon after a change of score."""
    news_s: float | None = None
    score: float = 0.0
    """The score of the job when its last diagnosis began."""


class JudgingRotation:
    """Determines the order in which watched jobs are diagnosed."""

    def __init__(self, pace: RotationIntervals | None = None) -> None:
        self.pace = pace or RotationIntervals()
        self._schedules: dict[int, _JobSchedule] = {}
        self._going: dict[int, float] = {}
        self._calm_s = -math.inf

    @property
    def going(self) -> Mapping[int, float]:
        """The jobs that are being diagnosed, and the start of each diagnosis."""
        return self._going

    def next(
        self,
        now_s: float,
        scores: Mapping[int, float],
        found: Collection[int] = (),
        wanted: Collection[int] = (),
    ) -> list[int]:
        """Return the jobs to diagnose now, the highest score first.

        `scores` contains all jobs; jobs with a score of at least 1 are diagnosed. `found` contains the jobs
        with a reported or unsettled fault. `wanted` contains the jobs whose diagnosis is required for other
        decisions.
        """
        self._schedules = {job: schedule for job, schedule in self._schedules.items() if job in scores}
        self._going = {job: since for job, since in self._going.items() if job in scores}
        room = self.pace.at_once - len(self._going)
        due: list[tuple[float, int]] = []
        for job, score in scores.items():
            schedule = self._schedules.get(job)
            if job in self._going:
                continue
            if schedule is None:
                schedule = self._schedules[job] = _JobSchedule()
            if score >= 1 and score > self.pace.worse * schedule.well and schedule.news_s is None:
                schedule.news_s, schedule.next_s = now_s, now_s
            ready = now_s >= schedule.next_s
            if job in found and ready:
                due.append((1.0, job))  # already reported: new faults come first
            elif score >= 1 and ready:
                due.append((score, job))
            elif job in wanted and now_s - schedule.judged_s >= self.pace.wanted_again_s and ready:
                due.append((0.0, job))
        due.sort(key=lambda item: (-item[0], item[1]))
        chosen = [job for _, job in due[: max(room, 0)]]
        if not chosen and room > 0 and now_s - self._calm_s >= self.pace.calm_s:
            chosen = self._calm(now_s)
        for job in chosen:
            self._going[job] = now_s
            self._schedules[job].score = scores[job]
        return chosen

    def judged(self, job: int, now_s: float, *, found: bool, settled: bool) -> None:
        """Record a diagnosis.

        `found` is True if a fault is reported. `settled` is False if another diagnosis could decide whether
        there is a fault.
        """
        self._going.pop(job, None)
        schedule = self._schedules.setdefault(job, _JobSchedule())
        schedule.judged_s = now_s
        if found or not settled:
            schedule.pause_s = 0.0
            schedule.next_s = now_s + (self.pace.found_s if settled else self.pace.again_s / 2)
            return
        if schedule.news_s is not None and now_s - schedule.news_s < self.pace.news_s:
            schedule.next_s = now_s + self.pace.again_s
            return
        schedule.news_s = None
        schedule.well = max(schedule.well, schedule.score)
        schedule.pause_s = min(max(2 * schedule.pause_s, self.pace.again_s), self.pace.longest_s)
        schedule.next_s = now_s + schedule.pause_s

    def _calm(self, now_s: float) -> list[int]:
        """Return the job with the oldest diagnosis, if that diagnosis is old enough."""
        ready = [
            (schedule.judged_s, job)
            for job, schedule in self._schedules.items()
            if job not in self._going
            and now_s - schedule.judged_s >= self.pace.calm_again_s
            and now_s >= schedule.next_s
        ]
        if not ready:
            return []
        self._calm_s = now_s
        return [min(ready)[1]]
