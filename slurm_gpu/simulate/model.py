"""Simulate jobs on a cluster, from event to event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from slurm_gpu.simulate.cluster import ModelCluster
from slurm_gpu.simulate.jobs import Jobs
from slurm_gpu.simulate.limits import LimitCounter, LimitCounters
from slurm_gpu.simulate.outcome import JobTransition, ModelEvent, ModelOutcome
from slurm_gpu.simulate.placement import FirstFit, PlacementChoice
from slurm_gpu.simulate.preemption import Preemption
from slurm_gpu.simulate.preemption_fit import PreemptionFit
from slurm_gpu.simulate.queue import JobShape, ModelQueue
from slurm_gpu.simulate.scheduler import Scheduler, Scheduling
from slurm_gpu.simulate.starter import Starter
from slurm_gpu.simulate.state import ModelState

_PROGRESS_EVERY = 1000


def simulate(
    cluster: ModelCluster,
    jobs: Jobs,
    *,
    scheduling: Scheduling | None = None,
    counters: Sequence[LimitCounter] = (),
    placement: PlacementChoice | None = None,
    preemption: Preemption | None = None,
    zone_wait_s: float = math.inf,
    log: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> ModelOutcome:
    """Run all jobs to completion and return the outcome.

    `progress` is called from time to time with the number of finished jobs. A job that requires one zone may
    use several zones once it has waited for `zone_wait_s`. A job that fits nowhere, or exceeds a limit by
    itself, never starts.

    Raise ValueError if jobs name unknown partitions or counters, or if a placement returns nodes or GPUs that
    are not free.
    """
    model = _QueueModel(
        cluster,
        jobs,
        scheduling or Scheduling(),
        counters,
        placement or FirstFit(),
        preemption or Preemption(),
        zone_wait_s,
        log,
    )
    model.run(progress)
    return model.outcome()


class _QueueModel:
    def __init__(
        self,
        cluster: ModelCluster,
        jobs: Jobs,
        scheduling: Scheduling,
        counters: Sequence[LimitCounter],
        placement: PlacementChoice,
        preemption: Preemption,
        zone_wait_s: float,
        log: bool,
    ) -> None:
        _check(cluster, jobs, counters)
        n = len(jobs)
        self._jobs, self._scheduling = jobs, scheduling
        self._now_s = -math.inf
        self._log: list[ModelEvent] | None = [] if log else None
        self._state = ModelState(cluster)
        self._queue = ModelQueue(jobs, len(counters), len(cluster.partitions))
        self._limits = LimitCounters(counters)
        self._preemption = preemption
        self._preemption_fit = PreemptionFit(cluster, self._queue.shapes, preemption)
        starter = Starter(
            self._state,
            self._queue,
            self._limits,
            placement,
            self._preemption_fit,
            qos_of=self._qos_of,
            start=self._start,
            requeue=self._requeue,
            ran_s=lambda job: self._now_s - float(self._last[job]),
        )
        self._scheduler = Scheduler(starter)
        self._first = np.full(n, math.nan)
        self._last = np.full(n, math.nan)
        self._end = np.full(n, math.nan)
        self._limited = np.full(n, math.nan)
        self._restarts = np.zeros(n, dtype=np.int32)
        self._ends: list[tuple[float, int, int]] = []
        """Planned ends as (time, job, sequence number); only the last planned end of a job counts."""
        self._planned: dict[int, int] = {}
        self._coming: list[tuple[float, int]] = []
        """Requeued jobs as (time from which the job waits again, job)."""
        self._cancellations: list[tuple[float, int]] = []
        self._zone_wait_s = zone_wait_s
        self._releases: list[tuple[float, int]] = []
        """Jobs that require one zone as (time at which the requirement is dropped, job)."""
        self._outages = sorted(
            [(one.from_s, False, one.node) for one in cluster.outages]
            + [(one.to_s, True, one.node) for one in cluster.outages if one.to_s < math.inf],
            reverse=True,
        )
        self._arrived = self._over = 0
        self._backfill_at = math.inf
        self._requeued = False
        fits_never = [not self._fits_empty(shape) for shape in self._queue.shapes]
        self._fits_never = [fits_never[kind.shape] for kind in self._queue.kinds]

    def _qos_of(self, job: int) -> str:
        return self._jobs.qos_names[int(self._jobs.qos[job])]

    def run(self, progress: Callable[[int], object]) -> None:
        next_report = 0
        while (now := self._next_s()) < math.inf:
            self._now_s = now
            if self._happen(now):
                self._pass(now)
            if self._over >= next_report:
                progress(self._over)
                next_report = self._over + _PROGRESS_EVERY
        progress(self._over)

    def outcome(self) -> ModelOutcome:
        return ModelOutcome(self._first, self._end, self._restarts, self._limited, tuple(self._log or ()))

    def _next_s(self) -> float:
        now = self._backfill_at
        if self._arrived < len(self._jobs):
            now = min(now, float(self._jobs.submit_s[self._arrived]))
        for heap in (self._ends, self._coming, self._cancellations, self._releases):
            if heap and heap[0][0] < now:
                now = heap[0][0]
        if self._outages and self._outages[-1][0] < now:
            now = self._outages[-1][0]
        return now

    def _happen(self, now: float) -> bool:
        """Process all events at this moment except starts; return whether a job may be able to start."""
        changed = False
        while self._ends and self._ends[0][0] <= now:
            _, job, planned = heapq.heappop(self._ends)
            if self._planned.get(job) == planned:
                self._finish(job)
                changed = True
        while self._outages and self._outages[-1][0] <= now:
            _, opens, node = self._outages.pop()
            if opens:
                self._state.reopen(node)
                self._preemption_fit.reopen(node)
                changed = True
            else:
                self._state.close(node)
                self._preemption_fit.close(node)
        while self._cancellations and self._cancellations[0][0] <= now:
            _, job = heapq.heappop(self._cancellations)
            if self._queue.is_waiting(job) and not self._restarts[job]:
                self._queue.cancel(job)
                self._over += 1
                self._write(JobTransition.CANCEL, job)
                changed = True
        while self._releases and self._releases[0][0] <= now:
            _, job = heapq.heappop(self._releases)
            if self._queue.is_waiting(job):
                self._queue.release(job, now)
                changed = True
        while self._coming and self._coming[0][0] <= now:
            _, job = heapq.heappop(self._coming)
            self._wait(job)
            changed = True
        jobs = self._jobs
        while self._arrived < len(jobs) and jobs.submit_s[self._arrived] <= now:
            job = self._arrived
            self._arrived += 1
            self._write(JobTransition.SUBMIT, job)
            self._wait(job)
            if jobs.cancel_s[job] < math.inf:
                heapq.heappush(self._cancellations, (float(jobs.cancel_s[job]), job))
            changed = True
        return changed or self._backfill_at <= now

    def _pass(self, now: float) -> None:
        self._state.now_s = now
        every = self._scheduling.backfill_every_s
        while True:
            self._requeued = False
            if not self._queue.n_waiting:
                break
            if not self._scheduling.backfill:
                self._scheduler.strict_pass(now)
            elif every <= 0 or self._backfill_at <= now:
                self._backfill_at = math.inf
                self._scheduler.backfill_pass(now, self._scheduling.depth)
            else:
                self._scheduler.strict_pass(now)
                if self._queue.n_waiting:
                    self._backfill_at = min(self._backfill_at, (math.floor(now / every) + 1) * every)
            if not self._requeued:
                break
        if not self._queue.n_waiting:
            self._backfill_at = math.inf

    def _fits_empty(self, shape: JobShape) -> bool:
        """Return whether a job of this shape fits into an empty cluster; Slurm rejects other jobs."""
        fit = self._state.fits(shape.request, self._state.room(shape.partition, shape.request.gpu_type))
        if self._zone_wait_s == math.inf:
            fit = self._state.together(shape.request, fit)
        return int(np.count_nonzero(fit)) >= shape.request.nodes

    def _wait(self, job: int) -> None:
        if self._fits_never[self._queue.kind_of(job)]:
            return
        now = self._now_s
        self._queue.add(job, (-float(self._jobs.priority[job]), job), now)
        if self._queue.shape_of(job).request.one_zone and self._zone_wait_s < math.inf:
            at_s = float(self._jobs.submit_s[job]) + self._zone_wait_s
            heapq.heappush(self._releases, (max(now, at_s), job))

    def _start(self, job: int, nodes: tuple[int, ...], devices: tuple[tuple[int, ...], ...]) -> None:
        now, jobs = self._now_s, self._jobs
        request = self._queue.shape_of(job).request
        limited_s = self._queue.take(job, now)
        limit_s = float(jobs.limit_s[job])
        allocation = self._state.start(job, request, nodes, devices, now + limit_s)
        self._preemption_fit.start(allocation, self._qos_of(job))
        self._limits.take(self._queue.counters_of(job), self._queue.amounts_of(job))
        if math.isnan(self._first[job]):
            self._first[job], self._limited[job] = now, limited_s
        self._last[job] = now
        self._write(JobTransition.START, job, nodes, devices)
        self._plan_end(job, now + min(float(jobs.run_s[job]), limit_s))

    def _plan_end(self, job: int, at_s: float) -> None:
        planned = self._planned.get(job, 0) + 1
        self._planned[job] = planned
        heapq.heappush(self._ends, (at_s, job, planned))

    def _finish(self, job: int) -> None:
        self._release(job)
        del self._planned[job]
        self._end[job] = self._now_s
        self._over += 1
        self._write(JobTransition.END, job)

    def _requeue(self, job: int) -> None:
        self._release(job)
        self._planned[job] += 1  # cancels the planned end
        self._restarts[job] += 1
        self._write(JobTransition.REQUEUE, job)
        heapq.heappush(self._coming, (self._now_s + self._preemption.requeue_after_s, job))
        self._requeued = True

    def _release(self, job: int) -> None:
        self._state.end(job)
        self._preemption_fit.end(job, self._qos_of(job))
        counters = self._queue.counters_of(job)
        self._limits.give_back(counters, self._queue.amounts_of(job))
        for counter in counters:
            self._queue.unpark(counter, partial(self._limits.has_room, counter), self._now_s)

    def _write(
        self,
        what: JobTransition,
        job: int,
        nodes: tuple[int, ...] = (),
        devices: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        if self._log is not None:
            self._log.append(ModelEvent(self._now_s, what, job, nodes, devices))


def _check(cluster: ModelCluster, jobs: Jobs, counters: Sequence[LimitCounter]) -> None:
    for what, codes, n in (
        ("partition", jobs.partition, len(cluster.partitions)),
        ("request", jobs.request, len(jobs.requests)),
        ("set of counters", jobs.counters, len(jobs.counter_sets)),
        ("QOS", jobs.qos, len(jobs.qos_names)),
    ):
        if len(codes) and (codes.min() < 0 or codes.max() >= n):
            raise ValueError(f"jobs name a {what} out of range; there are {n}, numbered from 0")
    for one in jobs.counter_sets:
        if any(not 0 <= counter < len(counters) for counter in one):
            raise ValueError(
                f"jobs name counters {one}, but there are {len(counters)} counters, numbered from 0"
            )
