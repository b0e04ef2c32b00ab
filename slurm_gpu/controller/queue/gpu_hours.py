"""Sum up the GPU-hours of the periods that limits count, such as the current week, in the site's time zone.

Earlier runs are read once from Slurm's accounting, back to the start of the periods. Later ends are read from
the queue, which lists a job for some minutes after its end. Running jobs count up to the current time. The
GPU-hours of a run are its allocated GPUs × (end − start), including the time when it was suspended, because a
suspended job keeps its GPUs.

Runs are stored for some days after their end, because several sources report them. For earlier runs, only the
sums by day are stored.

A run that its owner resizes has several consecutive parts. Accounting has one row for each part. The queue
reports the GPUs of the last part but the start of the first part, so the queue is used only for the time
after the known parts. A resize that accounting has not reported yet is detected when the number of GPUs
differs from the last poll.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from slurm_gpu.controller.queue.usage import Subject, UsageOwner, subjects_of
from slurm_gpu.policy.language.periods import midnight
from slurm_gpu.policy.lua.installed import GroupInForce

# The key of the GPU-hours that pending and running jobs may still use, in addition to the keys of periods.
COMMITTED = "committed"
# Jobs without a time limit are assumed to run for a year, as in job_submit.lua.
MOST_S = 365 * 86400
# Time after the end of a run for which accounting may report the run again.
_REMEMBERED_S = 3 * 86400


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
        """Recently ended runs from accounting, by job ID."""
        self._days: dict[dt.date, dict[UsageOwner, float]] = {}
        """GPU-hours of all runs in accounting, by day."""
        self._newest_s = 0
        """The latest end of a run in accounting."""
        self._has_more = False
        """Whether runs were added to `_ended` since the last pruning."""
        self._subjects: dict[UsageOwner, list[Subject]] = {}
        """Subjects of each owner in `_groups`."""
        self._groups: list[GroupInForce] = []
        self._sums: dict[UsageOwner, dict[str, float]] = {}
        """GPU-hours of all runs in accounting since the times in `_starts`."""
        self._starts: dict[str, int] = {}
        self._unreported: dict[int, tuple[GpuRun, ...]] = {}
        """Ended runs from the queue that accounting has not reported yet."""
        self._running: dict[int, GpuRun] = {}
        """Runs that were running in the last poll of the queue."""

    def note_ended(self, run: GpuRun) -> None:
        """Add a run, or a part of a run, that ended according to accounting."""
        known = self._ended.get(run.job_id, ())
        if run.end_s is None or run.end_s <= run.start_s or run.mgpu == 0:
            return
        if any(other.start_s == run.start_s for other in known):
            return
        self._ended[run.job_id] = (*known, run)
        self._newest_s, self._has_more = max(self._newest_s, run.end_s), True
        self._add(run, run.end_s, self._sums)
        for day, gpu_h in self._by_day(run, run.end_s):
            of_day = self._days.setdefault(day, {})
            of_day[run.owner] = of_day.get(run.owner, 0.0) + gpu_h
        unreported = self._unreported.pop(run.job_id, ())
        if left := tuple(other for other in unreported if not _overlap(run, other)):
            self._unreported[run.job_id] = left

    def note_gone(self, run: GpuRun) -> None:
        """Add a run that ended according to the queue."""
        before = self._running.get(run.job_id)
        if before is not None and before.start_s == run.start_s:
            run = replace(run, mgpu=before.mgpu)  # the run was resized; accounting will report the time
        begin_s = self._unreported_from(run)
        # The times of accounting may differ by a second from those of the queue.
        least_s = 0 if begin_s == run.start_s else 1
        if run.end_s is not None and run.end_s - begin_s > least_s and run.mgpu:
            part = replace(run, start_s=begin_s)
            self._unreported[run.job_id] = (*self._unreported.get(run.job_id, ()), part)

    def totals(
        self,
        running: Iterable[GpuRun],
        groups: Iterable[GroupInForce],
        starts: Mapping[str, int],
        now_s: float,
    ) -> dict[Subject, dict[str, float]]:
        """Return the GPU-hours since each start, by subject with GPU-hours; running jobs are included."""
        if starts != self._starts:
            self._start_periods(dict(starts))
        running = list(running)
        for run in running:
            before = self._running.get(run.job_id)
            if before is not None and before.start_s == run.start_s and before.mgpu != run.mgpu:
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
        """The UID of each user with GPU-hours."""
        owners = (*self._sums, *(run.owner for run in self._running.values()))
        return {owner.user: owner.uid for owner in owners}

    def _note_requeued(self, running: dict[int, GpuRun], now_s: int) -> None:
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

    def _unreported_from(self, run: GpuRun) -> int:
        """Return the start of the part of a run that is not covered by its known ended parts."""
        known = (*self._ended.get(run.job_id, ()), *self._unreported.get(run.job_id, ()))
        ends = [part.end_s for part in known if part.end_s is not None and part.start_s >= run.start_s - 1]
        return max([run.start_s, *ends])

    def _start_periods(self, starts: dict[str, int]) -> None:
        """Start new periods: drop days before all periods, and recompute the sums."""
        self._starts, self._sums = starts, {}
        firsts = {period: self._day(start_s) for period, start_s in starts.items()}
        self._days = {day: sums for day, sums in self._days.items() if day >= min(firsts.values())}
        for day, of_day in self._days.items():
            counting = [period for period, first in firsts.items() if day >= first]
            for owner, gpu_h in of_day.items():
                sums = self._sums.setdefault(owner, dict.fromkeys(starts, 0.0))
                for period in counting:
                    sums[period] += gpu_h
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

    def _by_day(self, run: GpuRun, end_s: float) -> Iterator[tuple[dt.date, float]]:
        """Yield the GPU-hours of a run on each day."""
        begin_s: float = run.start_s
        while begin_s < end_s:
            day = self._day(begin_s)
            next_s = min(end_s, max(midnight(day + dt.timedelta(days=1), self._zone), begin_s + 1))
            yield day, (next_s - begin_s) / 3600 * run.mgpu / 1000
            begin_s = next_s

    def _add(self, run: GpuRun, end_s: float, sums: dict[UsageOwner, dict[str, float]]) -> None:
        hours = sums.setdefault(run.owner, dict.fromkeys(self._starts, 0.0))
        for period, start_s in self._starts.items():
            allocated_s = end_s - max(run.start_s, start_s)
            if allocated_s > 0:
                hours[period] += allocated_s / 3600 * run.mgpu / 1000


def committed_hours(
    jobs: Iterable[tuple[UsageOwner, int, float]], groups: Iterable[GroupInForce]
) -> dict[Subject, dict[str, float]]:
    """Return the GPU-hours that jobs may still use, by subject in a group with a hard limit.

    Each job is a tuple of its owner, its GPUs (mgpu) and the remaining seconds of its time limit.
    """
    sums: dict[UsageOwner, dict[str, float]] = {}
    for owner, mgpu, left_s in jobs:
        hours = sums.setdefault(owner, {COMMITTED: 0.0})
        hours[COMMITTED] += min(max(left_s, 0), MOST_S) / 3600 * mgpu / 1000
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
