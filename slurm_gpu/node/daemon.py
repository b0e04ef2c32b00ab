"""The wheel of slurm-gpud: hook events in, looks at devices, records out. One thread, never waits inside."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.allocations import Allocation, Allocations
from slurm_gpu.node.cgroup import ProcessJobs
from slurm_gpu.node.devices import Device, DeviceLibrary, DeviceLostError
from slurm_gpu.node.gres import GresOrder
from slurm_gpu.node.hooks import HookDirectory, HookEvent, Kind
from slurm_gpu.node.spool import Spool
from slurm_gpu.node.tally import Tally
from slurm_gpu.node.watch import DeviceWatch
from slurm_gpu.records import Event

log = logging.getLogger(__name__)

CHECKPOINT_S = 10.0
# How often a driver, or a lost GPU, is looked for again; how often a failing spool is tried again.
RETRY_S = 10.0
SPOOL_RETRY_S = 1.0


@dataclass(slots=True)
class _Segment:
    """An open or ending allocation while it is watched; `tallies` are by device and lack unknown ones."""

    allocation: Allocation
    tallies: dict[str, Tally] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    ending: bool = False
    epilog: HookEvent | None = None


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
        library: DeviceLibrary,
        gres: GresOrder,
        spool: Spool,
        processes: ProcessJobs,
        interval_s: float,
    ) -> None:
        self._name, self._cluster, self._clock = name, cluster, clock
        self._hooks, self._library, self._gres, self._spool = hooks, library, gres, spool
        self._processes, self._interval_s = processes, interval_s
        self._allocations = Allocations()
        self._segments: dict[str, _Segment] = {}
        self._watches: dict[str, DeviceWatch] = {}
        self._devices: dict[str, Device] = {}
        self._granted: dict[int, int] = {}
        self._taken: list[HookEvent] = []
        self._started = False
        self._last_event_n = 0
        self._no_driver = False
        self._assumed_told = False
        self._find_at_s = 0.0
        self._checkpoint_at_s = clock.monotonic() + CHECKPOINT_S
        self._spool_at_s = 0.0

    # The wheel

    def start(self) -> None:
        """Take up what an earlier process left: each open allocation goes on as a new segment.

        One that ended meanwhile, or in an earlier boot, is closed with what was spooled of it last.
        """
        self._find_devices()
        if self._devices:
            self._gres.uuids((), [])  # asked now, so that the first job need not wait for the answer
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
        self._look([watch for watch in self._looking() if watch.next_look_s(now_s) <= now_s])
        self._finish()
        if now_s >= self._checkpoint_at_s:
            self._checkpoint()
        self._commit(now_s)
        return self._next_step_s()

    def stop(self) -> None:
        """Write down all that is known; the allocations stay open for the next process."""
        for watch in self._looking():
            watch.look_thoroughly()
        self._look(self._looking())
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
        for segment in self._segments.values():
            for tally in segment.tallies.values():
                tally.granted_mgpu = self._granted.get(tally.key.job_id, tally.granted_mgpu)

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
        return [watch for watch in self._watches.values() if watch.held and watch.lost is None]

    def _look(self, watches: Sequence[DeviceWatch]) -> None:
        owners = self._allocations.owners()
        for watch in watches:
            watch.look(self._clock.monotonic(), owners)
            if watch.lost is not None:
                self._tell_lost(watch)

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
            self._tell("epilog_missing", job_id=event.job_id)
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
        allocation = self._resolve(allocation)
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
        segment = self._segments.get(allocation.key.segment)
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
        """Close what this process has not watched: the last spooled record, or none at all, stands."""
        same_boot = event is not None and event.boot_id == allocation.key.boot_id
        end_s = event.uptime_s if event is not None and same_boot else allocation.start_s
        for device in allocation.device_names:
            last = self._spool.last_record(allocation.key.segment, device)
            if last is None:
                self._save_unsampled(allocation, device, end_s)
            else:
                held_s = max(last.held_s, end_s - allocation.start_s)
                last_s = max(last.last_s, int(allocation.start_wall_s + held_s))
                closed = replace(last, seq=last.seq + 1, final=True, held_s=held_s, last_s=last_s)
                self._spool.save_record(closed)
        self._allocations.remove(allocation)
        self._segments.pop(allocation.key.segment, None)
        self._spool.drop_allocation(allocation)
        if event is not None and event.kind is Kind.EPILOG:
            self._taken.append(event)

    def _finish(self) -> None:
        """Make final what has ended and of which nothing more will be learnt."""
        now_s = self._clock.monotonic()
        for watch in self._watches.values():
            for tally in watch.settled(now_s):
                self._spool.save_record(tally.record(now_s, final=True))
                self._segments[tally.key.segment].unsettled.discard(watch.device.uuid)
        for key, segment in list(self._segments.items()):
            if not segment.ending or segment.unsettled:
                continue
            end_s = next(iter(segment.tallies.values())).end_s
            assert end_s is not None
            for device in segment.allocation.device_names:
                if device not in segment.tallies:
                    self._save_unsampled(segment.allocation, device, end_s)
            self._spool.drop_allocation(segment.allocation)
            if segment.epilog is not None:
                self._taken.append(segment.epilog)
            del self._segments[key]

    def _save_unsampled(self, allocation: Allocation, device: str, end_s: float) -> None:
        tally = self._tally(allocation, device)
        tally.end_s = max(end_s, tally.start_s)
        self._spool.save_record(tally.record(tally.end_s, final=True))

    # Devices

    def _needs_devices(self) -> bool:
        for allocation in self._allocations:
            if len(allocation.devices) < len(allocation.positions):
                return True
            if any(uuid not in self._devices for uuid in allocation.devices.values()):
                return True
        return any(watch.held and watch.lost is not None for watch in self._watches.values())

    def _find_devices(self) -> None:
        self._find_at_s = self._clock.monotonic() + RETRY_S
        try:
            found = self._library.devices()
        except NvmlError as error:
            if not self._no_driver:
                log.warning("%s; allocations are recorded without samples until there is a driver", error)
            self._no_driver = True
            return
        if self._no_driver:
            log.warning("NVML answers now")
        self._no_driver = False
        self._devices = {device.uuid: device for device in found}
        now_s = self._clock.monotonic()
        for uuid, watch in self._watches.items():
            device = self._devices.get(uuid)
            if watch.lost is not None and device is not None and _answers(device):
                log.warning("GPU %s answers again", uuid)
                watch.recover(device, now_s)
        for allocation in self._allocations:
            resolved = self._resolve(allocation)
            if resolved is not allocation:
                self._allocations.put(resolved)
                self._spool.save_allocation(resolved)

    def _resolve(self, allocation: Allocation) -> Allocation:
        """The allocation with the devices that can be told by now."""
        unknown = [p for p in allocation.positions if p not in allocation.devices]
        if not unknown or not self._devices:
            return allocation
        found = self._gres.uuids(unknown, list(self._devices.values()))
        if self._gres.assumed and not self._assumed_told:
            self._assumed_told = True
            log.warning("slurmd -G names no GPU files: positions are taken to be in order of minor numbers")
            self._tell("gres_order_assumed")
        return replace(allocation, devices={**allocation.devices, **found}) if found else allocation

    def _watch_new(self) -> None:
        """Begin to watch what is open and not watched yet."""
        for allocation in self._allocations:
            segment = self._segments.get(allocation.key.segment)
            if segment is None:
                segment = self._segments[allocation.key.segment] = _Segment(allocation)
            segment.allocation = allocation
            for uuid in allocation.devices.values():
                if uuid in segment.tallies or uuid not in self._devices:
                    continue
                if uuid not in self._watches:
                    device = self._devices[uuid]
                    watch = DeviceWatch(device, self._clock, self._processes, self._interval_s)
                    self._watches[uuid] = watch
                segment.tallies[uuid] = tally = self._tally(allocation, uuid)
                segment.unsettled.add(uuid)
                self._watches[uuid].hold(tally)

    def _tally(self, allocation: Allocation, device: str) -> Tally:
        tally = Tally(allocation.key, device, allocation.start_s, allocation.start_wall_s)
        tally.granted_mgpu = self._granted.get(allocation.key.job_id)
        return tally

    # What is written down

    def _checkpoint(self) -> None:
        now_s = self._clock.monotonic()
        self._checkpoint_at_s = now_s + CHECKPOINT_S
        for segment in self._segments.values():
            for uuid in segment.unsettled:
                self._spool.save_record(segment.tallies[uuid].record(now_s))

    def _commit(self, now_s: float) -> None:
        if now_s < self._spool_at_s:
            return
        if not self._spool.commit():
            self._spool_at_s = now_s + SPOOL_RETRY_S
            return
        for event in self._taken:
            self._hooks.remove(event)
        self._taken.clear()

    def _tell_lost(self, watch: DeviceWatch) -> None:
        log.error("GPU lost: %s", watch.lost)
        for allocation in self._allocations:
            if watch.device.uuid in allocation.devices.values():
                self._tell("gpu_lost", device=watch.device.uuid, job_id=allocation.key.job_id)

    def _tell(self, kind: str, *, device: str | None = None, job_id: int | None = None) -> None:
        at_s = self._clock.wall()
        # Its number is its time in µs, so that no two are alike even if the spool was lost.
        self._last_event_n = max(self._last_event_n + 1, int(at_s * 1e6))
        boot_id = self._clock.boot_id()
        self._spool.save_event(
            Event(
                node=self._name,
                boot_id=boot_id,
                n=self._last_event_n,
                at_s=int(at_s),
                kind=kind,
                device=device,
                job_id=job_id,
            )
        )


def _answers(device: Device) -> bool:
    try:
        device.memory()
    except DeviceLostError:
        return False
    return True
