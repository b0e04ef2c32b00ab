"""The wheel of slurm-gpud: hook events in, looks at devices, records out. One thread, never waits inside."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.allocations import Allocation, Allocations
from slurm_gpu.node.events import EventBook
from slurm_gpu.node.gres import GresOrder
from slurm_gpu.node.hooks import HookDirectory, HookEvent, Kind
from slurm_gpu.node.inventory import Inventory
from slurm_gpu.node.processjobs import ProcessJobs
from slurm_gpu.node.reading import Failure, Reader, Trouble, Xid
from slurm_gpu.node.segments import SegmentBook
from slurm_gpu.node.spool import Spool
from slurm_gpu.node.watch import DeviceWatch

log = logging.getLogger(__name__)

CHECKPOINT_S = 10.0
# How often a driver, or a lost GPU, is looked for again; how often a failing spool is tried again.
RETRY_S = 10.0
SPOOL_RETRY_S = 1.0
_EVENT_OF = {Trouble.LOST: "gpu_lost", Trouble.HUNG: "gpu_hung"}


class Node:
    """All that slurm-gpud knows and does on one node, but for shipping.

    Call `start` once, then `step` again and again; `stop` at the end.
    """

    def __init__(
        self,
        *,
        name: str,
        cluster: str,
        clock: Clock,
        hooks: HookDirectory,
        reader: Reader,
        gres: GresOrder,
        spool: Spool,
        processes: ProcessJobs,
        interval_s: float,
    ) -> None:
        self._name, self._cluster, self._clock = name, cluster, clock
        self._hooks, self._reader, self._spool = hooks, reader, spool
        self._processes, self._interval_s = processes, interval_s
        self._events = EventBook(name, clock, spool)
        self._inventory = Inventory(reader, gres, self._events)
        self._allocations = Allocations()
        self._segments = SegmentBook(spool)
        self._watches: dict[str, DeviceWatch] = {}
        self._granted: dict[int, int] = {}
        self._taken: list[HookEvent] = []
        self._started = False
        self._find_at_s = 0.0
        self._checkpoint_at_s = clock.monotonic() + CHECKPOINT_S
        self._spool_at_s = 0.0

    # The wheel

    def start(self) -> None:
        """Take up what an earlier process left: each open allocation goes on as a new segment.

        One that ended meanwhile, or in an earlier boot, is closed with what was spooled of it last.
        """
        self._find_devices()
        self._inventory.ask_slurm()
        restored = self._spool.allocations()
        for allocation in restored:
            self._allocations.put(allocation)
        for event in self._hooks.take():
            self._apply(event)
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        for allocation in self._allocations:
            if allocation.key.boot_id != self._clock.boot_id():
                self._close_unwatched(allocation, None)
            elif allocation in restored:
                self._spool.drop_allocation(allocation)
                self._open(allocation.continued(now_s, wall_s))
        self._started = True
        self._watch_new()
        self._commit(now_s)

    def step(self) -> float:
        """Do all that is due; returns when to call again (Clock.monotonic())."""
        for event in self._hooks.take():
            self._apply(event)
        now_s = self._clock.monotonic()
        if now_s >= self._find_at_s and self._needs_devices():
            self._find_devices()
        self._watch_new()
        self._look([watch for watch in self._looking() if watch.is_due(now_s)], now_s)
        self._finish()
        if now_s >= self._checkpoint_at_s:
            self._checkpoint()
        self._commit(now_s)
        return self._next_step_s()

    def stop(self) -> None:
        """Write down all that is known; the allocations stay open for the next process."""
        for watch in self._looking():
            watch.look_thoroughly()
        self._look(self._looking(), self._clock.monotonic())
        self._checkpoint()
        self._spool_at_s = 0.0
        self._commit(self._clock.monotonic())

    def learn(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        """What slurm-gpudbd tells of jobs: the part of a GPU that each was granted."""
        for job_id, facts in jobs.items():
            granted = facts.get("granted_mgpu")
            if isinstance(granted, int) and not isinstance(granted, bool) and granted >= 0:
                self._granted[job_id] = granted
        open_jobs = {allocation.key.job_id for allocation in self._allocations}
        self._granted = {job: granted for job, granted in self._granted.items() if job in open_jobs}
        self._segments.grant(self._granted)

    def ended(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        """Those of the open jobs that Slurm says are over."""

    def open_jobs(self) -> list[int]:
        """Raw ids of the jobs that hold GPUs here."""
        return [allocation.key.job_id for allocation in self._allocations]

    def holders(self) -> Mapping[str, list[int]]:
        """The same by device; a device that nobody holds is absent."""
        holders: dict[str, list[int]] = {}
        for allocation in self._allocations:
            for uuid in allocation.devices.values():
                holders.setdefault(uuid, []).append(allocation.key.job_id)
        return holders

    def windows(self, job_ids: Collection[int]) -> list[Mapping[str, Any]]:
        """The last ten minutes of those jobs, one of each of their devices, as they are shipped."""
        tallies = [
            tally
            for segment in self._segments
            if segment.allocation.key.job_id in job_ids
            for tally in segment.tallies.values()
        ]
        return [window for tally in tallies if (window := tally.window()) is not None]

    def _next_step_s(self) -> float:
        now_s = self._clock.monotonic()
        due = [self._checkpoint_at_s, now_s + RETRY_S]
        due.extend(watch.next_look_s(now_s) for watch in self._looking())
        if self._needs_devices():
            due.append(self._find_at_s)
        if self._taken:
            due.append(self._spool_at_s)
        return min(due)

    def _looking(self) -> list[DeviceWatch]:
        return [watch for watch in self._watches.values() if watch.held and watch.failure is None]

    def _look(self, watches: Sequence[DeviceWatch], now_s: float) -> None:
        """One look at the devices of these watches, all together."""
        requests = [request for watch in watches if (request := watch.request(now_s)) is not None]
        if not requests:
            return
        results = self._reader.read(requests)
        owners = self._allocations.owners()
        for request in requests:
            watch = self._watches[request.uuid]
            if (failure := results.failures.get(request.uuid)) is not None:
                watch.fail(failure)
                self._tell_failure(watch, failure)
            elif (reading := results.readings.get(request.uuid)) is not None:
                watch.take(reading, owners)
            else:
                watch.skip()
        for xid in results.xids:
            self._tell_xid(xid)

    # Hook events

    def _apply(self, event: HookEvent) -> None:
        if event.kind is Kind.PROLOG:
            self._begin(event)
        else:
            self._end(event)

    def _begin(self, event: HookEvent) -> None:
        before = self._allocations.of_job(event.job_id)
        if before is not None and before.prolog_at_s == event.at_s:
            self._taken.append(event)  # known from before a crash
            return
        if before is not None:
            log.warning("job %d begins anew without an epilog of its last run", event.job_id)
            self._events.tell("epilog_missing", job_id=event.job_id)
            self._close(before, event)
        if event.positions:
            self._open(Allocation.from_prolog(event, self._cluster, self._name))
        self._taken.append(event)

    def _end(self, event: HookEvent) -> None:
        allocation = self._allocations.of_job(event.job_id)
        if allocation is not None:
            if self._started:
                self._watch_new()  # a job so short that its prolog was seen only now
            self._close(allocation, event)
            return
        if event.positions:
            log.info("job %d ended, of which no prolog was seen", event.job_id)
        self._taken.append(event)

    def _open(self, allocation: Allocation) -> None:
        allocation = self._inventory.resolve(allocation)
        if len(allocation.devices) < len(allocation.positions):
            log.warning(
                "job %d holds GPUs at positions %s; known are %s",
                allocation.key.job_id,
                list(allocation.positions),
                dict(allocation.devices),
            )
        self._allocations.put(allocation)
        self._spool.save_allocation(allocation)

    def _close(self, allocation: Allocation, event: HookEvent) -> None:
        """It ends at the stamp of that event, which is kept until the final records are on disk."""
        segment = self._segments.get(allocation)
        if segment is None or not segment.tallies or event.boot_id != allocation.key.boot_id:
            self._close_unwatched(allocation, event)
            return
        self._allocations.remove(allocation)
        segment.ending = True
        segment.epilog = event if event.kind is Kind.EPILOG else None
        now_s = self._clock.monotonic()
        for device, tally in segment.tallies.items():
            tally.end_s = max(tally.start_s, event.uptime_s)
            self._watches[device].release(tally, now_s)

    def _close_unwatched(self, allocation: Allocation, event: HookEvent | None) -> None:
        same_boot = event is not None and event.boot_id == allocation.key.boot_id
        end_s = event.uptime_s if event is not None and same_boot else allocation.start_s
        self._segments.close_unwatched(allocation, end_s)
        self._allocations.remove(allocation)
        if event is not None and event.kind is Kind.EPILOG:
            self._taken.append(event)

    def _finish(self) -> None:
        """Make final what has ended and of which nothing more will be learnt."""
        now_s = self._clock.monotonic()
        for watch in self._watches.values():
            for tally in watch.settled(now_s):
                self._segments.settle(tally, now_s)
        for segment in self._segments.finish():
            if segment.epilog is not None:
                self._taken.append(segment.epilog)

    # Devices

    def _needs_devices(self) -> bool:
        if not all(self._inventory.knows(allocation) for allocation in self._allocations):
            return True
        return any(watch.held and watch.failure is not None for watch in self._watches.values())

    def _find_devices(self) -> None:
        self._find_at_s = self._clock.monotonic() + RETRY_S
        if not self._inventory.find():
            return
        now_s = self._clock.monotonic()
        for uuid, watch in self._watches.items():
            if watch.failure is not None and uuid in self._inventory.answering:
                log.warning("GPU %s answers again", uuid)
                watch.recover(now_s)
        for allocation in self._allocations:
            resolved = self._inventory.resolve(allocation)
            if resolved is not allocation:
                self._allocations.put(resolved)
                self._spool.save_allocation(resolved)

    def _watch_new(self) -> None:
        """Begin to watch what is open and not watched yet."""
        for allocation in self._allocations:
            segment = self._segments.of(allocation)
            for uuid in allocation.devices.values():
                if uuid in segment.tallies or uuid not in self._inventory.answering:
                    continue
                if uuid not in self._watches:
                    self._watches[uuid] = DeviceWatch(uuid, self._clock, self._processes, self._interval_s)
                facts = self._inventory.answering[uuid]
                self._watches[uuid].hold(self._segments.begin(segment, facts))

    # What is written down

    def _checkpoint(self) -> None:
        now_s = self._clock.monotonic()
        self._checkpoint_at_s = now_s + CHECKPOINT_S
        self._segments.checkpoint(now_s)

    def _commit(self, now_s: float) -> None:
        if now_s < self._spool_at_s:
            return
        if not self._spool.commit():
            self._spool_at_s = now_s + SPOOL_RETRY_S
            return
        for event in self._taken:
            self._hooks.remove(event)
        self._taken.clear()
        if dropped := self._spool.take_dropped():
            self._events.tell("spool_full", data={"dropped": dropped})

    def _tell_failure(self, watch: DeviceWatch, failure: Failure) -> None:
        log.error("GPU %s: %s: %s", failure.trouble, watch.uuid, failure.why)
        if failure.trouble in _EVENT_OF:
            for job_id in self._jobs_on(watch.uuid):
                self._events.tell(_EVENT_OF[failure.trouble], device=watch.uuid, job_id=job_id)

    def _tell_xid(self, xid: Xid) -> None:
        log.warning("GPU %s: XID %d", xid.uuid, xid.code)
        for job_id in self._jobs_on(xid.uuid) or [None]:
            self._events.tell("xid", device=xid.uuid, job_id=job_id, at_s=xid.at_s, data={"code": xid.code})

    def _jobs_on(self, uuid: str) -> list[int | None]:
        return [a.key.job_id for a in self._allocations if uuid in a.devices.values()]
