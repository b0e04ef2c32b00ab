"""The main loop of slurm-gpud, which never blocks: read hook events, sample devices and save records."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.allocation.hooks import HookEvents, HookKind
from slurm_gpu.node.clock_step import ClockSteps
from slurm_gpu.node.gpu.reader_exits import RepeatedExits
from slurm_gpu.node.gpu.reading import Failure, Follower, Reader, ReadError, Reading, ReadRequest
from slurm_gpu.node.host.host_records import HostRecorder
from slurm_gpu.node.jobs.cross_check import Crosscheck
from slurm_gpu.node.jobs.inventory import EVENT_OF, DeviceOrder, Inventory
from slurm_gpu.node.jobs.lifecycle import LifeCycle
from slurm_gpu.node.jobs.suspension import Suspensions
from slurm_gpu.node.measure.sampling_interval import DETAIL_SHARE
from slurm_gpu.node.measure.watch import DeviceWatch
from slurm_gpu.node.process.job_cgroups import JobCgroups
from slurm_gpu.node.process.process_jobs import ProcessJobs
from slurm_gpu.node.shipping.events import EventRecorder
from slurm_gpu.node.shipping.implausible import ImplausibleValues
from slurm_gpu.node.shipping.shipment import JobFacts
from slurm_gpu.node.shipping.spool import Spool

log = logging.getLogger(__name__)

CHECKPOINT_S = 10.0
# Interval between searches for a missing driver or a lost GPU.
RETRY_S = 10.0
# Interval between searches while the driver is starting.
STARTING_RETRY_S = 0.5
SPOOL_RETRY_S = 1.0
_MAX_WHY = 500


class NodeDaemon:
    """Does all of slurm-gpud's work on one node except shipping.

    Call `start` once, then `step` repeatedly, and `stop` at the end. If there is a `follower`, it takes the
    samples while only memory samples are due.
    """

    def __init__(
        self,
        *,
        name: str,
        cluster: str,
        clock: Clock,
        hooks: HookEvents,
        reader: Reader,
        order: DeviceOrder,
        spool: Spool,
        processes: ProcessJobs,
        cgroups: JobCgroups,
        interval_s: float,
        hosts: HostRecorder | None = None,
        follower: Follower | None = None,
    ) -> None:
        self._clock, self._hooks, self._reader, self._spool = clock, hooks, reader, spool
        self._processes, self._hosts = processes, hosts
        self._follower, self._interval_s = follower, interval_s
        self._on_gpu: dict[str, Sequence[int]] = {}
        self._events = EventRecorder(name, clock, spool)
        self._inventory = Inventory(reader, order, self._events)
        self._clock_steps = ClockSteps(clock, spool)
        self._placed_since_s = -math.inf
        self._suspensions = Suspensions(cgroups)
        self._crosscheck = Crosscheck(processes, self._events)
        self.implausible = ImplausibleValues(clock, self._report_implausible)
        self._life = LifeCycle(
            name=name,
            cluster=cluster,
            clock=clock,
            spool=spool,
            events=self._events,
            inventory=self._inventory,
            suspensions=self._suspensions,
            cgroups=cgroups,
            new_watch=lambda uuid: DeviceWatch(uuid, clock, processes, interval_s, self._placed_since_s),
        )
        self._unallocated_failures: dict[str, Failure] = {}
        self._find_at_s = 0.0
        self._checkpoint_at_s = _next_checkpoint_s(clock.monotonic())
        self._spool_at_s = 0.0

    # Main loop

    def start(self) -> None:
        """Continue the allocations of an earlier process."""
        self._find_devices()
        self._inventory.ask_slurm()
        before = [self._spool.last_host(a.key.segment) for a in self._spool.allocations()]
        events = self._hooks.take()
        # If the spool is new or damaged, earlier usage is never charged to a job.
        if self._spool.is_whole and not self._clock_steps.was_unchanged(events):
            self._placed_since_s = self._clock.monotonic()
        self._life.start(events)
        for host in before:
            if host is not None and not host.final:
                self._spool.save_host(replace(host, seq=host.seq + 1, final=True))
        self._clock_steps.write()
        if self._spool.was_lost:
            self._events.record("spool_lost")
        self._commit(self._clock.monotonic())

    def step(self) -> None:
        """Do all due work; `due_s` returns when to call this again."""
        self._take_followed()
        for event in self._hooks.take():
            self._life.apply(event)
            if self._hosts is not None and event.kind is HookKind.PROLOG:
                self._hosts.note_job(event.job_id)
        now_s = self._clock.monotonic()
        self._life.returning.poll()
        if now_s >= self._find_at_s and self._needs_devices():
            self._find_devices()
        if self._inventory.news():
            self._life.resolve()
        self._life.watch_new()
        # The steps above may have taken a while, for example the first sample of a GPU.
        self._suspensions.poll(self._life.segments, self._clock.monotonic())
        if now_s >= self._checkpoint_at_s:
            for watch in self._sampled_watches():
                watch.request_detail()
        unallocated = self._unallocated_requests() if now_s >= self._checkpoint_at_s else ()
        if not self._is_followed(now_s):
            self._sample(
                [watch for watch in self._sampled_watches() if watch.is_due(now_s)], now_s, unallocated
            )
        self._life.finish()
        self._step_hosts(now_s)
        if now_s >= self._checkpoint_at_s:
            self._checkpoint()
        self._follow(now_s)
        self._report_clock_step()
        self._commit(now_s)

    def stop(self) -> None:
        """Save all records; the allocations remain open for the next process."""
        self._take_followed()
        for watch in self._sampled_watches():
            watch.request_detail()
        self._sample(self._sampled_watches(), self._clock.monotonic())
        self._checkpoint()
        self._spool_at_s = 0.0
        self._commit(self._clock.monotonic())

    def update_jobs(self, jobs: JobFacts) -> None:
        """Apply slurm-gpudbd's report on this node's jobs."""
        self._take_followed()
        self._life.update_jobs(jobs)
        self._life.watch_new()

    def end_jobs(self, jobs: JobFacts) -> None:
        """Apply Slurm's report on ended jobs."""
        self._take_followed()
        self._life.end_jobs(jobs)

    def open_jobs(self) -> list[int]:
        """Return the raw IDs of the jobs to which GPUs of this node are allocated."""
        return [allocation.key.job_id for allocation in self._life.allocations]

    def jobs_by_device(self) -> Mapping[str, list[int]]:
        """Return the raw IDs of the jobs on each allocated device."""
        jobs_by_device: dict[str, list[int]] = {}
        for allocation in self._life.allocations:
            for uuid in allocation.devices.values():
                jobs_by_device.setdefault(uuid, []).append(allocation.key.job_id)
        return jobs_by_device

    def windows(self, job_ids: Collection[int]) -> list[Mapping[str, Any]]:
        """Return the windows of these jobs, one per device, in wire format."""
        self._take_followed()
        tallies = [
            tally
            for segment in self._life.segments
            if segment.allocation.key.job_id in job_ids
            for tally in segment.tallies.values()
        ]
        return [window for tally in tallies if (window := tally.window()) is not None]

    def due_s(self) -> float:
        """Return when to call `step` again (Clock.monotonic()); `update_jobs` may bring this time forward."""
        now_s = self._clock.monotonic()
        due = [self._checkpoint_at_s, now_s + RETRY_S]
        if self._follower is not None and self._is_followed(now_s):
            due.extend((self._suspensions.next_poll_s, self._follower.overdue_s))
        else:
            due.extend(watch.next_sample_s(now_s) for watch in self._sampled_watches())
        if self._needs_devices():
            due.append(self._find_at_s)
        if (poll_s := self._life.returning.next_poll_s) is not None:
            due.append(poll_s)
        if self._life.taken:
            due.append(self._spool_at_s)
        if self._hosts is not None and (poll_s := self._hosts.next_step_s()) is not None:
            due.append(poll_s)
        return min(due)

    def _sampled_watches(self) -> list[DeviceWatch]:
        return [
            watch for watch in self._life.watches.values() if watch.is_allocated and watch.failure is None
        ]

    def _unallocated_requests(self) -> list[ReadRequest]:
        """Return requests that sample unallocated devices to find failures, XIDs and unexpected processes."""
        allocated = {watch.uuid for watch in self._life.watches.values() if watch.is_allocated}
        answering = self._inventory.answering
        # A GPU in MIG mode lists the processes of its instances.
        cut_up = {facts.parent for facts in answering.values()}
        return [
            ReadRequest(uuid=uuid, detailed=True, processes=uuid not in cut_up)
            for uuid in answering
            if uuid not in allocated and uuid not in self._unallocated_failures
        ]

    def _sample(
        self, watches: Sequence[DeviceWatch], now_s: float, unallocated: Sequence[ReadRequest] = ()
    ) -> None:
        """Sample the devices of these watches together with the unallocated devices."""
        allocated = [request for watch in watches if (request := watch.request(now_s)) is not None]
        if not allocated and not unallocated:
            return
        results = self._reader.read([*allocated, *unallocated])
        owners = self._life.allocations.owners()
        for request in allocated:
            watch = self._life.watches[request.uuid]
            if (failure := results.failures.get(request.uuid)) is not None:
                watch.fail(failure)
                self._report_failure(request.uuid, failure)
            elif (reading := results.readings.get(request.uuid)) is not None:
                self.implausible.note(request.uuid, reading.implausible)
                watch.take(reading, owners)
                if reading.processes is not None:
                    self._on_gpu[request.uuid] = [process.pid for process in reading.processes]
                self._check_processes(request.uuid, reading, now_s)
            else:
                watch.skip()
        for request in unallocated:
            if (failure := results.failures.get(request.uuid)) is not None:
                self._unallocated_failures[request.uuid] = failure
                self._report_failure(request.uuid, failure)
            elif (reading := results.readings.get(request.uuid)) is not None:
                self.implausible.note(request.uuid, reading.implausible)
                if self._knows_all():
                    self._check_processes(request.uuid, reading, now_s)
        for xid in results.xids:
            log.warning("GPU %s: XID %d", xid.uuid, xid.code)
            self._report_device_event(xid.uuid, "xid", xid.at_s, {"code": xid.code})

    # Samples that the reader takes by itself

    def _follow(self, now_s: float) -> None:
        """Let the reader take the samples until the next checkpoint if only memory samples are due."""
        follower, watches = self._follower, self._sampled_watches()
        # With a shorter interval, detailed samples are due before the checkpoint; with a longer one, too few
        # samples remain.
        at_memory_alone = CHECKPOINT_S / DETAIL_SHARE <= self._interval_s <= CHECKPOINT_S / 2
        if follower is None or follower.follows or not at_memory_alone:
            return
        if watches and all(watch.is_steady(now_s) for watch in watches):
            follower.follow([watch.uuid for watch in watches], self._interval_s, self._checkpoint_at_s)

    def _is_followed(self, now_s: float) -> bool:
        """Return whether the reader takes all due samples."""
        return (
            self._follower is not None
            and self._follower.follows
            and now_s < self._checkpoint_at_s
            and all(watch.is_steady(now_s) for watch in self._sampled_watches())
        )

    def _take_followed(self) -> None:
        """Count the samples that the reader took by itself; call this before applying any later change."""
        if self._follower is None:
            return
        owners = self._life.allocations.owners()
        for uuid, reading in self._follower.followed():
            self.implausible.note(uuid, reading.implausible)
            if (watch := self._life.watches.get(uuid)) is not None:
                watch.take_followed(reading, owners)

    def _check_processes(self, uuid: str, reading: Reading, now_s: float) -> None:
        if reading.processes is not None and self._crosscheck.is_due(uuid, now_s):
            pids = (process.pid for process in reading.processes)
            self._crosscheck.check(uuid, pids, self._life.jobs_on(uuid), self._life.known(), now_s)

    def _step_hosts(self, now_s: float) -> None:
        if self._hosts is None:
            return
        self._hosts.sync(self._life.allocations, now_s)
        for host in self._hosts.step(now_s, self._pids_on_gpus):
            self._spool.save_host(self.implausible.host(host))

    def _pids_on_gpus(self) -> Mapping[int, Sequence[int]]:
        """Return the IDs of each job's processes on GPUs."""
        owners = self._life.allocations.owners()
        found: dict[int, list[int]] = {}
        for pid in {pid for pids in self._on_gpu.values() for pid in pids}:
            if (job := self._processes.job_of(pid, owners)) is not None:
                found.setdefault(job, []).append(pid)
        return found

    # Devices

    def _knows_all(self) -> bool:
        return all(self._inventory.knows(allocation) for allocation in self._life.allocations)

    def _needs_devices(self) -> bool:
        if not self._knows_all() or self._unallocated_failures or self._inventory.has_unnamed:
            return True
        # Include unallocated devices, so that the next job does not have to wait for them.
        failed = any(watch.failure is not None for watch in self._life.watches.values())
        return failed or self._life.waits_for_devices

    def _find_devices(self) -> None:
        found = self._inventory.find()
        now_s = self._clock.monotonic()
        self._find_at_s = now_s + (STARTING_RETRY_S if self._inventory.starting else RETRY_S)
        if not found:
            return
        watches = self._life.watches
        failed = {watch.uuid: watch.failure for watch in watches.values() if watch.failure is not None}
        unallocated, self._unallocated_failures = self._unallocated_failures, {}
        failed |= unallocated
        if any(failure.kind is ReadError.DRIVER for failure in failed.values()):
            log.warning("the driver answers again")
            self._events.record("driver_reloaded")
        for uuid, failure in failed.items():
            watch = watches.get(uuid)
            if uuid in self._inventory.answering:
                log.warning("GPU %s answers again", uuid)
                if watch is not None and watch.failure is not None:
                    watch.recover(now_s)
                if failure.kind in EVENT_OF:
                    self._report_device_event(uuid, "gpu_back")
                self._inventory.reported_back(uuid)
                continue
            if failure.kind is ReadError.DRIVER:
                failure = Failure(ReadError.LOST, "the driver works again, but does not list this GPU")
                self._report_failure(uuid, failure)
            if watch is not None and watch.failure is not None:
                watch.fail(failure)
            if uuid in unallocated:
                self._unallocated_failures[uuid] = failure
        self._life.resolve()

    # Records and events

    def _checkpoint(self) -> None:
        now_s = self._clock.monotonic()
        self._checkpoint_at_s = _next_checkpoint_s(now_s)
        self._life.segments.checkpoint(now_s)
        self._clock_steps.write()
        for host in () if self._hosts is None else self._hosts.hosts(now_s):
            self._spool.save_host(self.implausible.host(host))

    def _commit(self, now_s: float) -> None:
        if now_s < self._spool_at_s:
            return
        if not self._spool.commit():
            self._spool_at_s = now_s + SPOOL_RETRY_S
            return
        for event in self._life.taken:
            self._hooks.remove(event)
        self._life.taken.clear()
        if dropped := self._spool.queue.take_dropped():
            self._events.record("spool_full", data={"dropped": dropped})

    def _report_clock_step(self) -> None:
        if (step_s := self._clock_steps.step_s()) is not None:
            log.warning("the wall clock was set by %+.3f s", step_s)
            self._events.record("clock_step", data={"seconds": round(step_s, 3)})

    def _report_failure(self, uuid: str, failure: Failure) -> None:
        log.error("GPU %s: %s: %s", failure.kind, uuid, failure.why)
        if failure.kind in EVENT_OF:
            self._report_device_event(uuid, EVENT_OF[failure.kind])

    def report_reader_failing(self, dying: RepeatedExits) -> None:
        """Record an event for repeated exits of the process that calls NVML."""
        self._events.record("reader_failing", data={"deaths": dying.exits, "why": dying.why[:_MAX_WHY]})

    def _report_implausible(self, device: str | None, data: Mapping[str, Any]) -> None:
        if device is None:
            self._events.record("implausible", data=data)
        else:
            self._report_device_event(device, "implausible", data=data)

    def _report_device_event(
        self, uuid: str, kind: str, at_s: float | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record an event for each job on the device, or one event without a job if there is none."""
        jobs: list[int | None] = [*self._life.jobs_on(uuid)]
        for job_id in jobs or [None]:
            self._events.record(kind, device=uuid, job_id=job_id, at_s=at_s, data=data)


def _next_checkpoint_s(now_s: float) -> float:
    """Return the next multiple of CHECKPOINT_S, which coincides with a sample."""
    return (now_s // CHECKPOINT_S + 1) * CHECKPOINT_S
