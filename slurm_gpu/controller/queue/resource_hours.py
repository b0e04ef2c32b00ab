"""Sum up resource-hours in the periods to which limits apply, such as this week, in the site's time zone.

Ended runs are read from Slurm's accounting, back to the start of the periods. Recent ends are first read from
the queue, which lists a job for some minutes after its end. Running jobs count up to the current time. The
GPU-hours of a run are its allocated GPUs × (end − start), including the time when it was suspended, because a
suspended job keeps its GPUs; its CPU-hours count in the same way.

Runs are stored for some days after their end, because several sources report them. For earlier runs, only the
sums by day are stored.

A run that its owner resizes has several consecutive parts. Accounting has one row for each part. The queue
reports the resources of the last part but the start of the first, so it is used only for the time after the
known parts. A resize that accounting has not reported yet is detected when the resources differ from the last
poll.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from zoneinfo import ZoneInfo

from slurm_gpu.controller.queue.amounts import Amounts
from slurm_gpu.controller.queue.usage import Subject, UsageOwner, subjects_of
from slurm_gpu.policy.language.hour_sums import parts_of, split_type
from slurm_gpu.policy.language.periods import BEFORE, midnight
from slurm_gpu.policy.lua.installed import GroupInForce

# Jobs without a time limit are assumed to run for a year, as in job_submit.lua.
MOST_S = 365 * 86400
# Time after the end of a run for which accounting may report the run again.
_REMEMBERED_S = 3 * 86400


# The resource-hours that a job uses per hour, by unit (hour_sums.py). Only units of limits in force occur.
HourlyUse = Mapping[str, float]


def hourly_use(amounts: Amounts, possible: frozenset[str] | None, units: Iterable[str]) -> HourlyUse:
    """Return the resource-hours that a job with these amounts uses per hour, by unit; omit those that are 0.

    GPUs of unknown type count for every type in `possible`, or for all types if it is None, as in
    job_submit.lua.
    """
    unknown = max(amounts.mgpu - sum(amounts.mgpu_by_type.values()), 0)
    found: dict[str, float] = {}
    for unit in units:
        resource, gpu_type = split_type(unit)
        if resource == "gpu_h":
            may_be = possible is None or gpu_type in possible
            of_type = amounts.mgpu_by_type.get(gpu_type or "", 0) + (unknown if may_be else 0)
            found[unit] = (amounts.mgpu if gpu_type is None else of_type) / 1000
        else:
            found[unit] = amounts.cpus if resource == "cpu_h" else amounts.billing
    return {unit: hours for unit, hours in found.items() if hours}


@dataclass(frozen=True, slots=True)
class CountedRun:
    """One run of a job, or one part of a resized run; `end_s` is None while it is running."""

    job_id: int
    owner: UsageOwner
    hourly: HourlyUse
    start_s: int
    end_s: int | None


class _Sum(NamedTuple):
    """A sum of resource-hours in a period; `end_s` is infinite for the present period."""

    key: str
    unit: str
    start_s: int
    end_s: float

    @classmethod
    def of(cls, key: str, starts: Mapping[str, int]) -> _Sum:
        end_s = starts[key.removesuffix(BEFORE)] if key.endswith(BEFORE) else math.inf
        return cls(key, parts_of(key)[0], starts[key], end_s)


class ResourceHours:
    """Sums resource-hours over runs; each moment of a job counts once, even if it is reported repeatedly.

    `units` are the units of the limits in force. Runs without such units are ignored.
    """

    def __init__(self, zone: ZoneInfo, units: Iterable[str] = ()) -> None:
        self._zone = zone
        self.units = frozenset(units)
        self._ended: dict[int, tuple[CountedRun, ...]] = {}
        """Recently ended runs from accounting, by job ID."""
        self._days: dict[dt.date, dict[UsageOwner, dict[str, float]]] = {}
        """Resource-hours of all runs in accounting, by day."""
        self._newest_s = 0
        """The latest end of a run in accounting."""
        self._has_more = False
        """Whether runs were added to `_ended` since the last pruning."""
        self._subjects: dict[UsageOwner, list[Subject]] = {}
        """Subjects of each owner in `_groups`."""
        self._groups: list[GroupInForce] = []
        self._sums: dict[UsageOwner, dict[str, float]] = {}
        """Resource-hours of all runs in accounting since the times in `_starts`, by key (hour_sums.py)."""
        self._starts: dict[str, int] = {}
        self._counted: tuple[_Sum, ...] = ()
        """The sums for `_starts`."""
        self._unreported: dict[int, tuple[CountedRun, ...]] = {}
        """Ended runs from the queue that accounting has not reported yet."""
        self._running: dict[int, CountedRun] = {}
        """Running runs in the last poll of the queue."""

    def note_ended(self, run: CountedRun) -> None:
        """Add a run, or a part of one, that ended according to accounting."""
        known = self._ended.get(run.job_id, ())
        if run.end_s is None or run.end_s <= run.start_s or not self._counts(run):
            return
        if any(other.start_s == run.start_s for other in known):
            return
        self._ended[run.job_id] = (*known, run)
        self._newest_s, self._has_more = max(self._newest_s, run.end_s), True
        self._add(run, run.end_s, self._sums)
        for day, hours in self._by_day(run, run.end_s):
            of_day = self._days.setdefault(day, {})
            used = of_day.setdefault(run.owner, {})
            for unit, hourly in run.hourly.items():
                used[unit] = used.get(unit, 0.0) + hours * hourly
        unreported = self._unreported.pop(run.job_id, ())
        if left := tuple(other for other in unreported if not _overlap(run, other)):
            self._unreported[run.job_id] = left

    def note_gone(self, run: CountedRun) -> None:
        """Add a run that ended according to the queue."""
        before = self._running.get(run.job_id)
        if before is not None and before.start_s == run.start_s:
            run = replace(run, hourly=before.hourly)  # resized; accounting will report when
        begin_s = self._unreported_from(run)
        # The times of accounting may differ by a second from those of the queue.
        least_s = 0 if begin_s == run.start_s else 1
        if run.end_s is not None and run.end_s - begin_s > least_s and self._counts(run):
            part = replace(run, start_s=begin_s)
            self._unreported[run.job_id] = (*self._unreported.get(run.job_id, ()), part)

    def totals(
        self,
        running: Iterable[CountedRun],
        groups: Iterable[GroupInForce],
        starts: Mapping[str, int],
        now_s: float,
    ) -> dict[Subject, dict[str, float]]:
        """Return the resource-hours in each period by subject, including running jobs.

        Subjects without use are left out. The keys of `starts` and of the sums are those of hour_sums.py.
        """
        if starts != self._starts:
            self._start_periods(dict(starts))
        running = list(running)
        for run in running:
            before = self._running.get(run.job_id)
            if before is not None and before.start_s == run.start_s and before.hourly != run.hourly:
                self.note_gone(replace(before, end_s=int(now_s)))
        self._note_requeued({run.job_id: run for run in running}, int(now_s))
        if self._has_more:
            self._prune()
        sums = {owner: dict(hours) for owner, hours in self._sums.items()}
        for parts in self._unreported.values():
            for part in parts:
                assert part.end_s is not None
                self._add(part, part.end_s, sums)
        for run in running:
            begin_s = self._unreported_from(run)
            self._add(run if begin_s == run.start_s else replace(run, start_s=begin_s), now_s, sums)
        return self._by_subject(sums, list(groups))

    @property
    def uids(self) -> dict[str, int]:
        """The UID of each user with resource-hours."""
        owners = (*self._sums, *(run.owner for run in self._running.values()))
        return {owner.user: owner.uid for owner in owners}

    def _counts(self, run: CountedRun) -> bool:
        return any(run.hourly.get(unit) for unit in self.units)

    def _note_requeued(self, running: dict[int, CountedRun], now_s: int) -> None:
        """Replace the running runs; runs that ended unnoticed, for example by a requeue, count until now."""
        for job_id, before in self._running.items():
            after = running.get(job_id)
            known = (*self._ended.get(job_id, ()), *self._unreported.get(job_id, ()))
            has_ended = after is None or after.start_s != before.start_s
            if has_ended and not any(part.start_s >= before.start_s - 1 for part in known):
                part = replace(before, end_s=now_s if after is None else min(now_s, after.start_s))
                self._unreported[job_id] = (*self._unreported.get(job_id, ()), part)
        self._running = running

    def _by_subject(
        self, sums: Mapping[UsageOwner, Mapping[str, float]], groups: list[GroupInForce]
    ) -> dict[Subject, dict[str, float]]:
        if groups != self._groups:
            self._groups, self._subjects = groups, {}
        for owner in sums.keys() - self._subjects.keys():
            self._subjects[owner] = subjects_of(owner, groups)
        return _by_subject(sums, self._subjects.__getitem__)

    def _unreported_from(self, run: CountedRun) -> int:
        """Return the start of the part of a run that is not covered by its known ended parts."""
        known = (*self._ended.get(run.job_id, ()), *self._unreported.get(run.job_id, ()))
        ends = [part.end_s for part in known if part.end_s is not None and part.start_s >= run.start_s - 1]
        return max([run.start_s, *ends])

    def _start_periods(self, starts: dict[str, int]) -> None:
        """Start new periods: drop days before all periods, and recompute the sums."""
        self._starts, self._sums = starts, {}
        self._counted = tuple(_Sum.of(key, starts) for key in starts)
        first = min(self._day(start_s) for start_s in starts.values())
        self._days = {day: sums for day, sums in self._days.items() if day >= first}
        for day, of_day in self._days.items():
            day_s = midnight(day, self._zone)
            counting = [one for one in self._counted if one.start_s <= day_s < one.end_s]
            for owner, used in of_day.items():
                sums = self._sums.setdefault(owner, dict.fromkeys(starts, 0.0))
                for one in counting:
                    sums[one.key] += used.get(one.unit, 0.0)
        self._unreported = _since(min(starts.values()), self._unreported)

    def _prune(self) -> None:
        """Drop runs that ended long before the newest run, except parts of runs that are running now."""
        self._has_more, since_s = False, self._newest_s - _REMEMBERED_S
        self._ended = {
            job_id: runs
            for job_id, runs in self._ended.items()
            if job_id in self._running or any(run.end_s is not None and run.end_s > since_s for run in runs)
        }

    def _day(self, at_s: float) -> dt.date:
        return dt.datetime.fromtimestamp(at_s, self._zone).date()

    def _by_day(self, run: CountedRun, end_s: float) -> Iterator[tuple[dt.date, float]]:
        """Yield the hours of a run on each day."""
        begin_s: float = run.start_s
        while begin_s < end_s:
            day = self._day(begin_s)
            next_s = min(end_s, max(midnight(day + dt.timedelta(days=1), self._zone), begin_s + 1))
            yield day, (next_s - begin_s) / 3600
            begin_s = next_s

    def _add(self, run: CountedRun, end_s: float, sums: dict[UsageOwner, dict[str, float]]) -> None:
        hours = sums.setdefault(run.owner, dict.fromkeys(self._starts, 0.0))
        for one in self._counted:
            allocated_s = min(end_s, one.end_s) - max(run.start_s, one.start_s)
            if allocated_s > 0:
                hours[one.key] += allocated_s / 3600 * run.hourly.get(one.unit, 0.0)


def committed_hours(
    jobs: Iterable[tuple[UsageOwner, HourlyUse, float]], groups: Iterable[GroupInForce], keys: Iterable[str]
) -> dict[Subject, dict[str, float]]:
    """Return the resource-hours that jobs may still use, by subject in a group with a hard limit.

    Each job is given as its owner, its use per hour and the rest of its time limit in seconds. `keys` names
    sums over pending and running jobs, such as `gpu_h_committed`.
    """
    units = {key: parts_of(key)[0] for key in keys}
    sums: dict[UsageOwner, dict[str, float]] = {}
    for owner, hourly, left_s in jobs:
        hours = sums.setdefault(owner, dict.fromkeys(units, 0.0))
        for key, unit in units.items():
            hours[key] += min(max(left_s, 0), MOST_S) / 3600 * hourly.get(unit, 0.0)
    hard = [group for group in groups if group.has_hard_limit]
    return _by_subject(sums, lambda owner: subjects_of(owner, hard))


def _by_subject(
    sums: Mapping[UsageOwner, Mapping[str, float]], subjects: Callable[[UsageOwner], list[Subject]]
) -> dict[Subject, dict[str, float]]:
    by_subject: dict[Subject, dict[str, float]] = {}
    for owner, hours in sums.items():
        for subject in subjects(owner):
            total = by_subject.setdefault(subject, dict.fromkeys(hours, 0.0))
            for key, value in hours.items():
                total[key] += value
    return by_subject


def _overlap(run: CountedRun, other: CountedRun) -> bool:
    assert run.end_s is not None
    return other.start_s < run.end_s and (other.end_s is None or other.end_s > run.start_s)


def _since(first_s: int, runs_of: Mapping[int, tuple[CountedRun, ...]]) -> dict[int, tuple[CountedRun, ...]]:
    """Return the runs that ended after `first_s`, by job ID."""
    late = {
        job_id: tuple(run for run in runs if run.end_s is not None and run.end_s > first_s)
        for job_id, runs in runs_of.items()
    }
    return {job_id: runs for job_id, runs in late.items() if runs}
