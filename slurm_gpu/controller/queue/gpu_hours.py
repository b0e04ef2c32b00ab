"""Sum up the GPU-hours of the current day, week and month in the site's time zone.

Earlier runs are read once from Slurm's accounting, back to the start of the periods. Later ends are read from
the queue, which lists a job for some minutes after its end. Running jobs count up to the present. The
GPU-hours of a run are its allocated GPUs × (end − start), including the time when it was suspended, because a
suspended job keeps its GPUs.

A run that its owner resizes has several consecutive parts. Accounting has one row for each part. The queue
reports the GPUs of the last part but the start of the first, so it is used only for the time after the known
parts. A resize that accounting has not reported yet is detected when the number of GPUs differs from the last
poll.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from zoneinfo import ZoneInfo

from slurm_gpu.controller.queue.usage import Subject, UsageOwner, subjects_of
from slurm_gpu.policy.lua.installed import GroupInForce


class CalendarPeriod(StrEnum):
    """The periods of GPU-hour limits; a week starts on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


def period_starts(now_s: float, zone: ZoneInfo) -> dict[CalendarPeriod, int]:
    """Return the start of each period that contains `now_s`, in epoch seconds."""
    today = dt.datetime.fromtimestamp(now_s, zone).date()
    days = {
        CalendarPeriod.DAY: today,
        CalendarPeriod.WEEK: today - dt.timedelta(days=today.weekday()),
        CalendarPeriod.MONTH: today.replace(day=1),
    }
    return {p: int(dt.datetime.combine(day, dt.time(), zone).timestamp()) for p, day in days.items()}


@dataclass(frozen=True, slots=True)
class GpuRun:
    """One run of a job on GPUs, or one part of a resized run; `end_s` is None while it is running."""

    job_id: int
    owner: UsageOwner
    mgpu: int
    start_s: int
    end_s: int | None


class GpuHours:
    """Sums GPU-hours over runs; each moment of a job counts once, even if it is reported repeatedly."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._ended: dict[int, tuple[GpuRun, ...]] = {}
        """Ended runs from accounting, by job ID."""
        self._sums: dict[UsageOwner, dict[CalendarPeriod, float]] = {}
        """Sums over `_ended` since the times in `_starts`."""
        self._starts: dict[CalendarPeriod, int] = {}
        self._unreported: dict[int, tuple[GpuRun, ...]] = {}
        """Ended runs from the queue that accounting has not reported yet."""
        self._running: dict[int, GpuRun] = {}
        """Running runs in the last poll of the queue."""

    def starts(self, now_s: float) -> Mapping[CalendarPeriod, int]:
        """Return the starts of the current periods."""
        return period_starts(now_s, self._zone)

    def note_ended(self, run: GpuRun) -> None:
        """Add a run, or a part of one, that ended according to accounting."""
        known = self._ended.get(run.job_id, ())
        if run.end_s is None or run.end_s <= run.start_s or run.mgpu == 0:
            return
        if any(other.start_s == run.start_s for other in known):
            return
        self._ended[run.job_id] = (*known, run)
        self._add(run, run.end_s, self._sums)
        unreported = self._unreported.pop(run.job_id, ())
        if left := tuple(other for other in unreported if not _overlap(run, other)):
            self._unreported[run.job_id] = left

    def note_gone(self, run: GpuRun) -> None:
        """Add a run that ended according to the queue."""
        before = self._running.get(run.job_id)
        if before is not None and before.start_s == run.start_s:
            run = replace(run, mgpu=before.mgpu)  # resized; accounting will report when
        begin_s = self._unreported_from(run)
        # The times of accounting may differ by a second from those of the queue.
        least_s = 0 if begin_s == run.start_s else 1
        if run.end_s is not None and run.end_s - begin_s > least_s and run.mgpu:
            part = replace(run, start_s=begin_s)
            self._unreported[run.job_id] = (*self._unreported.get(run.job_id, ()), part)

    def totals(
        self, running: Iterable[GpuRun], groups: Iterable[GroupInForce], now_s: float
    ) -> dict[Subject, dict[CalendarPeriod, float]]:
        """Return the GPU-hours of each subject that used any; running jobs are included."""
        starts = period_starts(now_s, self._zone)
        if starts != self._starts:
            self._start_periods(starts)
        running = list(running)
        for run in running:
            before = self._running.get(run.job_id)
            if before is not None and before.start_s == run.start_s and before.mgpu != run.mgpu:
                self.note_gone(replace(before, end_s=int(now_s)))
        self._running = {run.job_id: run for run in running}
        sums = {owner: dict(hours) for owner, hours in self._sums.items()}
        for parts in self._unreported.values():
            for part in parts:
                assert part.end_s is not None
                self._add(part, part.end_s, sums)
        for run in running:
            begin_s = self._unreported_from(run)
            self._add(run if begin_s == run.start_s else replace(run, start_s=begin_s), now_s, sums)
        by_subject: dict[Subject, dict[CalendarPeriod, float]] = {}
        groups = list(groups)
        for owner, hours in sums.items():
            for subject in subjects_of(owner, groups):
                total = by_subject.setdefault(subject, dict.fromkeys(CalendarPeriod, 0.0))
                for period, value in hours.items():
                    total[period] += value
        return by_subject

    def _unreported_from(self, run: GpuRun) -> int:
        """Return the start of the part of a run that is not covered by its known ended parts."""
        known = (*self._ended.get(run.job_id, ()), *self._unreported.get(run.job_id, ()))
        ends = [part.end_s for part in known if part.end_s is not None and part.start_s >= run.start_s - 1]
        return max([run.start_s, *ends])

    def _start_periods(self, starts: dict[CalendarPeriod, int]) -> None:
        """Start new periods: drop runs that ended before all of them, and recompute the sums."""
        self._starts, self._sums = starts, {}
        first_s = min(starts.values())
        self._ended, self._unreported = _since(first_s, self._ended), _since(first_s, self._unreported)
        for runs in self._ended.values():
            for run in runs:
                assert run.end_s is not None
                self._add(run, run.end_s, self._sums)

    def _add(self, run: GpuRun, end_s: float, sums: dict[UsageOwner, dict[CalendarPeriod, float]]) -> None:
        hours = sums.setdefault(run.owner, dict.fromkeys(CalendarPeriod, 0.0))
        for period, start_s in self._starts.items():
            allocated_s = end_s - max(run.start_s, start_s)
            if allocated_s > 0:
                hours[period] += allocated_s / 3600 * run.mgpu / 1000


def _overlap(run: GpuRun, other: GpuRun) -> bool:
    assert run.end_s is not None
    return other.start_s < run.end_s and (other.end_s is None or other.end_s > run.start_s)


def _since(first_s: int, runs_of: Mapping[int, tuple[GpuRun, ...]]) -> dict[int, tuple[GpuRun, ...]]:
    """Return the runs that ended after `first_s`, by job ID."""
    late = {
        job_id: tuple(run for run in runs if run.end_s is not None and run.end_s > first_s)
        for job_id, runs in runs_of.items()
    }
    return {job_id: runs for job_id, runs in late.items() if runs}
