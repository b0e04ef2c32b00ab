"""GPU-hours of the running day, week and month, in the site's time zone.

Runs that ended come from Slurm's accounting, read once back to the beginning of the periods, and from then on
from the queue, in which a job stays for some minutes after its end. Runs that go on count up to now. Slurm's
allocated GPUs × (end − start): a suspended job keeps its GPUs, and they count.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from zoneinfo import ZoneInfo

from slurm_gpu.controller.usage import Owner, Subject, subjects_of
from slurm_gpu.policy.installed import GroupInForce


class Period(StrEnum):
    """Over what GPU-hours are limited; a week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


def period_starts(now_s: float, zone: ZoneInfo) -> dict[Period, int]:
    """When each period that `now_s` lies in began, as epoch seconds."""
    today = dt.datetime.fromtimestamp(now_s, zone).date()
    days = {
        Period.DAY: today,
        Period.WEEK: today - dt.timedelta(days=today.weekday()),
        Period.MONTH: today.replace(day=1),
    }
    return {p: int(dt.datetime.combine(day, dt.time(), zone).timestamp()) for p, day in days.items()}


@dataclass(frozen=True, slots=True)
class GpuRun:
    """One execution of a job on GPUs; `end_s` is None while it goes on."""

    job_id: int
    owner: Owner
    mgpu: int
    start_s: int
    end_s: int | None


class GpuHours:
    """A book of runs; each run is counted once, however often it is told."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._ended: dict[tuple[int, int], GpuRun] = {}
        self._sums: dict[Owner, dict[Period, float]] = {}
        """Over `_ended`, from `_starts` on."""
        self._starts: dict[Period, int] = {}

    def starts(self, now_s: float) -> Mapping[Period, int]:
        """When the periods of now began."""
        return period_starts(now_s, self._zone)

    def note_ended(self, run: GpuRun) -> None:
        """Remember a run that is over."""
        key = (run.job_id, run.start_s)
        if run.end_s is None or run.end_s <= run.start_s or run.mgpu == 0 or key in self._ended:
            return
        self._ended[key] = run
        self._add(run, run.end_s, self._sums)

    def totals(
        self, running: Iterable[GpuRun], groups: Iterable[GroupInForce], now_s: float
    ) -> dict[Subject, dict[Period, float]]:
        """Hours of each subject that has any, with those of the runs that go on."""
        starts = period_starts(now_s, self._zone)
        if starts != self._starts:
            self._turn_over(starts)
        sums = {owner: dict(hours) for owner, hours in self._sums.items()}
        for run in running:
            self._add(run, now_s, sums)
        by_subject: dict[Subject, dict[Period, float]] = {}
        groups = list(groups)
        for owner, hours in sums.items():
            for subject in subjects_of(owner, groups):
                total = by_subject.setdefault(subject, dict.fromkeys(Period, 0.0))
                for period, value in hours.items():
                    total[period] += value
        return by_subject

    def _turn_over(self, starts: dict[Period, int]) -> None:
        """A new day, week or month: forget what no period holds any more, and sum up anew."""
        self._starts, self._sums = starts, {}
        first = min(starts.values())
        self._ended = {
            k: run for k, run in self._ended.items() if run.end_s is not None and run.end_s > first
        }
        for run in self._ended.values():
            if run.end_s is not None:
                self._add(run, run.end_s, self._sums)

    def _add(self, run: GpuRun, end_s: float, sums: dict[Owner, dict[Period, float]]) -> None:
        hours = sums.setdefault(run.owner, dict.fromkeys(Period, 0.0))
        for period, start_s in self._starts.items():
            held_s = end_s - max(run.start_s, start_s)
            if held_s > 0:
                hours[period] += held_s / 3600 * run.mgpu / 1000
