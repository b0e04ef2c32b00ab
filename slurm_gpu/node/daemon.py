"""The wheel of slurm-gpud: hook events in, looks at devices, records out. One thread, never waits inside."""

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
from slurm_gpu.node.gpu.reading import Failure, Follower, Reader, ReadError, Reading, ReadRequest, Xid
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
# How often a driver, or a lost GPU, is looked for again; how often a failing spool is tried again.
RETRY_S = 10.0
# The same while the driver is starting.
STARTING_RETRY_S = 0.5
SPOOL_RETRY_S = 1.0
_MAX_WHY = 500


class NodeDaemon:
    """All that slurm-gpud knows and does on one node, but for shipping.

    Call `start` once, then `step` again and again; `stop` at the end. While nothing but looks at memory is
    due, it leaves those to the `follower`, if there is one.
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
        self._unheld_failures: dict[str, Failure] = {}
        self._find_at_s = 0.0
        self._checkpoint_at_s = _next_checkpoint_s(clock.monotonic())
        self._spool_at_s = 0.0

    # The wheel

    def start(self) -> None:
        """Take up what an earlier process left."""
        self._find_devices()
        self._inventory.ask_slurm()
        before = [self._spool.last_host(a.key.segment) for a in self._spool.allocations()]
        events = self._hooks.take()
        # With a spool that is new or damaged nobody is charged with what was done before, as it is.
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
        """Do all that is due; `due_s` tells when to call again."""
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
        # What came before may have taken a while, as a first look at a GPU does.
        self._suspensions.poll(self._life.segments, self._clock.monotonic())
        if now_s >= self._checkpoint_at_s:
            for watch in self._looking():
                watch.request_detail()
        unheld = self._unheld() if now_s >= self._checkpoint_at_s else ()
        if not self._is_followed(now_s):
            self._look([watch for watch in self._looking() if watch.is_due(now_s)], now_s, unheld)
        self._life.finish()
        self._look_at_hosts(now_s)
        if now_s >= self._checkpoint_at_s:
            self._checkpoint()
        self._follow(now_s)
        self._report_clock_step()
        self._commit(now_s)

    def stop(self) -> None:
        """Write down all that is known; the allocations stay open for the next process."""
        self._take_followed()
        for watch in self._looking():
            watch.request_detail()
        self._look(self._looking(), self._clock.monotonic())
        self._checkpoint()
        self._spool_at_s = 0.0
        self._commit(self._clock.monotonic())

    def update_jobs(self, jobs: JobFacts) -> None:
        """What slurm-gpudbd tells of the jobs on this node."""
        self._take_followed()
        self._life.update_jobs(jobs)
        self._life.watch_new()

    def end_jobs(self, jobs: JobFacts) -> None:
        """Those of the open jobs that Slurm says are over."""
        self._take_followed()
        self._life.end_jobs(jobs)

    def open_jobs(self) -> list[int]:
        """Raw ids of the jobs that hold GPUs here."""
        return [allocation.key.job_id for allocation in self._life.allocations]

    def jobs_by_device(self) -> Mapping[str, list[int]]:
        """The same by device; a device that nobody holds is absent."""
        jobs_by_device: dict[str, list[int]] = {}
        for allocation in self._life.allocations:
            for uuid in allocation.devices.values():
                jobs_by_device.setdefault(uuid, []).append(allocation.key.job_id)
        return jobs_by_device

    def windows(self, job_ids: Collection[int]) -> list[Mapping[str, Any]]:
        """The last ten minutes of those jobs, one of each of their devices, as they are shipped."""
        self._take_followed()
        tallies = [
            tally
            for segment in self._life.segments
            if segment.allocation.key.job_id in job_ids
            for tally in segment.tallies.values()
        ]
        return [window for tally in tallies if (window := tally.window()) is not None]

    def due_s(self) -> float:
        """When to call `step` again (Clock.monotonic()), which may be sooner after `learn`."""
        now_s = self._clock.monotonic()
        due = [self._checkpoint_at_s, now_s + RETRY_S]
        if self._follower is not None and self._is_followed(now_s):
            due.extend((self._suspensions.next_poll_s, self._follower.overdue_s))
        else:
            due.extend(watch.next_sample_s(now_s) for watch in self._looking())
        if self._needs_devices():
            due.append(self._find_at_s)
        if (look_s := self._life.returning.next_poll_s) is not None:
            due.append(look_s)
        if self._life.taken:
            due.append(self._spool_at_s)
        if self._hosts is not None and (look_s := self._hosts.next_step_s()) is not None:
            due.append(look_s)
        return min(due)

    def _looking(self) -> list[DeviceWatch]:
        return [watch for watch in self._life.watches.values() if watch.held and watch.failure is None]

    def _unheld(self) -> list[ReadRequest]:
        """What to ask devices that nobody holds: they may fail, tell XIDs, or have processes all the same."""
        held = {watch.uuid for watch in self._life.watches.values() if watch.held}
        answering = self._inventory.answering
        # A GPU that is cut up shows the processes of its instances.
        cut_up = {facts.parent for facts in answering.values()}
        return [
            ReadRequest(uuid=uuid, detailed=True, processes=uuid not in cut_up)
            for uuid in answering
            if uuid not in held and uuid not in self._unheld_failures
        ]

    def _look(self, watches: Sequence[DeviceWatch], now_s: float, unheld: Sequence[ReadRequest] = ()) -> None:
        """One look at the devices of these watches, and at some that nobody holds, all together."""
        held = [request for watch in watches if (request := watch.request(now_s)) is not None]
        if not held and not unheld:
            return
        results = self._reader.read([*held, *unheld])
        owners = self._life.allocations.owners()
        for request in held:
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
        for request in unheld:
            if (failure := results.failures.get(request.uuid)) is not None:
                self._unheld_failures[request.uuid] = failure
                self._report_failure(request.uuid, failure)
            elif (reading := results.readings.get(request.uuid)) is not None:
                self.implausible.note(request.uuid, reading.implausible)
                if self._knows_all():
                    self._check_processes(request.uuid, reading, now_s)
        for xid in results.xids:
            self._report_xid(xid)

    # Looks that the reader makes of its own accord

    def _follow(self, now_s: float) -> None:
        """Leave the looks until the next checkpoint to the reader, if they are at memory alone."""
        follower, watches = self._follower, self._looking()
        # With a shorter interval details are due before, with a longer one there are too few looks.
        at_memory_alone = CHECKPOINT_S / DETAIL_SHARE <= self._interval_s <= CHECKPOINT_S / 2
        if follower is None or follower.follows or not at_memory_alone:
            return
        if watches and all(watch.is_steady(now_s) for watch in watches):
            follower.follow([watch.uuid for watch in watches], self._interval_s, self._checkpoint_at_s)

    def _is_followed(self, now_s: float) -> bool:
        """Does it do all that is due?"""
        return (
            self._follower is not None
            and self._follower.follows
            and now_s < self._checkpoint_at_s
            and all(watch.is_steady(now_s) for watch in self._looking())
        )

    def _take_followed(self) -> None:
        """Take them in, before anything happens that they do not know of."""
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

    def _look_at_hosts(self, now_s: float) -> None:
        if self._hosts is None:
            return
        self._hosts.sync(self._life.allocations, now_s)
        for host in self._hosts.step(now_s, self._pids_on_gpus):
            self._spool.save_host(self.implausible.host(host))

    def _pids_on_gpus(self) -> Mapping[int, Sequence[int]]:
        """Processes on GPUs, by the job that they belong to."""
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
        if not self._knows_all() or self._unheld_failures or self._inventory.has_unnamed:
            return True
        # Also of what nobody holds any more: the next job should not have to wait for it.
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
        unheld, self._unheld_failures = self._unheld_failures, {}
        failed |= unheld
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
                failure = Failure(ReadError.LOST, "the driver came back without it")
                self._report_failure(uuid, failure)
            if watch is not None and watch.failure is not None:
                watch.fail(failure)
            if uuid in unheld:
                self._unheld_failures[uuid] = failure
        self._life.resolve()

    # What is written down

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
        """The process that calls NVML ends again and again."""
        self._events.record("reader_failing", data={"deaths": dying.exits, "why": dying.why[:_MAX_WHY]})

    def _report_implausible(self, device: str | None, data: Mapping[str, Any]) -> None:
        if device is None:
            self._events.record("implausible", data=data)
        else:
            self._report_device_event(device, "implausible", data=data)

    def _report_xid(self, xid: Xid) -> None:
        log.warning("GPU %s: XID %d", xid.uuid, xid.code)
        self._report_device_event(xid.uuid, "xid", xid.at_s, {"code": xid.code})

    def _report_device_event(
        self, uuid: str, kind: str, at_s: float | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """An event of each job that holds the device, or of the device alone."""
        jobs: list[int | None] = [*self._life.jobs_on(uuid)]
        for job_id in jobs or [None]:
            self._events.record(kind, device=uuid, job_id=job_id, at_s=at_s, data=data)


def _next_checkpoint_s(now_s: float) -> float:
    """At whole multiples, so that it comes together with a look."""
    return (now_s // CHECKPOINT_S + 1) * CHECKPOINT_S
