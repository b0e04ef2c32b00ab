"""GPU-hours of the running day, week and month, in the site's time zone.

Runs that ended come from Slurm's accounting, read once back to the beginning of the periods, and from then on
from the queue, in which a job stays for some minutes after its end. Runs that go on count up to now. Slurm's
allocated GPUs × (end − start): a suspended job keeps its GPUs, and they count.

A run that its owner resizes is several parts, one after the other. The accounting has a row for each; the
queue has the GPUs of the last and the start of the first, so it speaks only for the time after those parts
that are known. A resize that the accounting has not told yet shows as other GPUs than at the last look.
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
    """Over what GPU-hours are limited; a week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


def period_starts(now_s: float, zone: ZoneInfo) -> dict[CalendarPeriod, int]:
    """When each period that `now_s` lies in began, as epoch seconds."""
    today = dt.datetime.fromtimestamp(now_s, zone).date()
    days = {
        CalendarPeriod.DAY: today,
        CalendarPeriod.WEEK: today - dt.timedelta(days=today.weekday()),
        CalendarPeriod.MONTH: today.replace(day=1),
    }
    return {p: int(dt.datetime.combine(day, dt.time(), zone).timestamp()) for p, day in days.items()}


@dataclass(frozen=True, slots=True)
class GpuRun:
    """One execution of a job on GPUs, or a part of one that was resized; `end_s` is None while it goes on."""

    job_id: int
    owner: UsageOwner
    mgpu: int
    start_s: int
    end_s: int | None


class GpuHours:
    """A store of runs; each moment of a job is counted once, however often it is told."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._ended: dict[int, tuple[GpuRun, ...]] = {}
        """What the accounting told, by job id."""
        self._sums: dict[UsageOwner, dict[CalendarPeriod, float]] = {}
        """Over `_ended`, from `_starts` on."""
        self._starts: dict[CalendarPeriod, int] = {}
        self._unreported: dict[int, tuple[GpuRun, ...]] = {}
        """What ended by the queue, until the accounting tells of that time."""
        self._running: dict[int, GpuRun] = {}
        """As the queue had them at the last look."""

    def starts(self, now_s: float) -> Mapping[CalendarPeriod, int]:
        """When the periods of now began."""
        return period_starts(now_s, self._zone)

    def note_ended(self, run: GpuRun) -> None:
        """Remember a run, or a part of one, that is over by the accounting."""
        told = self._ended.get(run.job_id, ())
        if run.end_s is None or run.end_s <= run.start_s or run.mgpu == 0:
            return
        if any(other.start_s == run.start_s for other in told):
            return
        self._ended[run.job_id] = (*told, run)
        self._add(run, run.end_s, self._sums)
        untold = self._unreported.pop(run.job_id, ())
        if left := tuple(other for other in untold if not _overlap(run, other)):
            self._unreported[run.job_id] = left

    def note_gone(self, run: GpuRun) -> None:
        """Remember a run that is over by the queue."""
        before = self._running.get(run.job_id)
        if before is not None and before.start_s == run.start_s:
            run = replace(
                run, mgpu=before.mgpu
            )  # resized since the last look: when, the accounting will tell
        begin_s = self._unreported_from(run)
        # The accounting's seconds may be one off the queue's.
        least_s = 0 if begin_s == run.start_s else 1
        if run.end_s is not None and run.end_s - begin_s > least_s and run.mgpu:
            part = replace(run, start_s=begin_s)
            self._unreported[run.job_id] = (*self._unreported.get(run.job_id, ()), part)

    def totals(
        self, running: Iterable[GpuRun], groups: Iterable[GroupInForce], now_s: float
    ) -> dict[Subject, dict[CalendarPeriod, float]]:
        """Hours of each subject that has any, with those of the runs that go on."""
        starts = period_starts(now_s, self._zone)
        if starts != self._starts:
            self._turn_over(starts)
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
        """When that part of a run of the queue began of which nothing is known yet."""
        known = (*self._ended.get(run.job_id, ()), *self._unreported.get(run.job_id, ()))
        ends = [part.end_s for part in known if part.end_s is not None and part.start_s >= run.start_s - 1]
        return max([run.start_s, *ends])

    def _turn_over(self, starts: dict[CalendarPeriod, int]) -> None:
        """A new day, week or month: forget what no period holds any more, and sum up anew."""
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
    """Of runs by job id those that ended after `first_s`."""
    late = {
        job_id: tuple(run for run in runs if run.end_s is not None and run.end_s > first_s)
        for job_id, runs in runs_of.items()
    }
    return {job_id: runs for job_id, runs in late.items() if runs}
