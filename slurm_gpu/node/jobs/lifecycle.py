"""From a job's hold on GPUs to its records: what opens allocations, what closes them, what watches meanwhile.

Hooks open and close. Where one could not be told, Slurm's word does: for jobs older than slurm-gpud, and for
epilogs that never came.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.node.allocation.hooks import HookEvent, HookKind
from slurm_gpu.node.allocation.tracker import Allocation, Allocations, epilog_between, is_before, is_of_run
from slurm_gpu.node.clock_step import STEP_S
from slurm_gpu.node.jobs.cross_check import KnownJobs
from slurm_gpu.node.jobs.ended_runs import EndedRuns
from slurm_gpu.node.jobs.grants import Grants
from slurm_gpu.node.jobs.inventory import Inventory
from slurm_gpu.node.jobs.reconcile import Reconciliation, Strangers, ToldJob
from slurm_gpu.node.jobs.requeued import Returning, ReturningJobs
from slurm_gpu.node.jobs.segments import SegmentBook
from slurm_gpu.node.jobs.suspension import Suspensions
from slurm_gpu.node.jobs.unresolved import UntoldDevices
from slurm_gpu.node.measure.watch import DeviceWatch
from slurm_gpu.node.process.job_cgroups import JobCgroups
from slurm_gpu.node.shipping.events import EventBook
from slurm_gpu.node.shipping.shipment import JobFacts
from slurm_gpu.node.shipping.spool import NodeSpool

log = logging.getLogger(__name__)


class LifeCycle:
    """The open allocations of this node and the watches on their devices.

    `taken` are hook events that need not be kept once the spool is on disk; whoever removes their files
    clears it. `cluster` and `name` (the node's) count where a hook did not tell.
    """

    def __init__(
        self,
        *,
        name: str,
        cluster: str,
        clock: Clock,
        spool: NodeSpool,
        events: EventBook,
        inventory: Inventory,
        suspensions: Suspensions,
        cgroups: JobCgroups,
        new_watch: Callable[[str], DeviceWatch],
    ) -> None:
        self._name, self._cluster, self._clock = name, cluster, clock
        self._spool, self._events, self._inventory = spool, events, inventory
        self._suspensions, self._new_watch = suspensions, new_watch
        self.allocations = Allocations()
        self.segments = SegmentBook(spool)
        self.watches: dict[str, DeviceWatch] = {}
        self.taken: list[HookEvent] = []
        self._grants = Grants()
        # By device, until when a job held it, or may have, that was not watched; None is any device.
        self._unwatched_until_s: dict[str | None, float] = {}
        self.returning = ReturningJobs(cgroups, clock)
        self._strangers = Strangers(self.returning)
        self._without_gpus: set[int] = set()
        self._ended = EndedRuns(spool, clock)
        self._reconciliation = Reconciliation(self._ended, clock.monotonic(), self.returning.is_seen)
        self._untold = UntoldDevices(inventory, clock.monotonic())
        self._started = False

    def start(self, events: Iterable[HookEvent]) -> None:
        """Take up what an earlier process left: each open allocation goes on as a new segment.

        One that ended meanwhile, by these events or in an earlier boot, is closed with what was spooled of it
        last.
        """
        events = list(events)
        restored = self._spool.allocations()
        for allocation in restored:
            before = self.allocations.of_job(allocation.key.job_id)
            if before is not None:  # it was about to be closed when its job began anew
                epilog = epilog_between(before, allocation, events)
                end_s = max(before.start_s, allocation.begun_s if epilog is None else epilog.uptime_s)
                self._held_unwatched(before, end_s)
                self._forget(before)
                self._file(before, end_s, epilog)
                if epilog is not None:
                    events.remove(epilog)
            self.allocations.put(allocation)
        for event in events:
            self.apply(event)
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        for allocation in self.allocations:
            if allocation.key.boot_id != self._clock.boot_id():
                self._close_unwatched(allocation, None)
            elif allocation in restored:
                self._open(self.segments.go_on(allocation, now_s, wall_s), began_before=True)
        if not self._spool.is_whole:  # who else held what until now is not known
            self._unwatched_until_s[None] = now_s
            self._strangers.lost_spool()
        self._started = True
        self.watch_new()

    # What hooks tell

    def apply(self, event: HookEvent) -> None:
        """A job begins or ends."""
        if event.kind is HookKind.PROLOG:
            self._begin(event)
        else:
            self._end(event)

    def _begin(self, event: HookEvent) -> None:
        before = self.allocations.of_job(event.job_id)
        is_open = before is not None and before.prolog_at_s == event.at_s
        if is_open or self._ended.began_at(event.job_id, event.at_s):
            self.taken.append(event)  # known from before a crash
            return
        if before is not None and before.is_told and is_of_run(event, before):
            self._put(before.confirmed(event))
            self.taken.append(event)
            return
        if before is not None:
            log.warning("job %d begins anew without an epilog of its last run", event.job_id)
            self._events.tell("epilog_missing", job_id=event.job_id)
            self._close(before, event)
        if event.positions:
            self._open(Allocation.from_prolog(event, self._cluster, self._name, self._wall_s_of(event)))
        else:
            self._without_gpus.add(event.job_id)
        self.taken.append(event)

    def _wall_s_of(self, event: HookEvent) -> float:
        """Its wall clock; as it would have been set by now if somebody has set it since, in an outage say."""
        if event.boot_id != self._clock.boot_id():
            return event.at_s
        now_s = event.uptime_s + wall_ahead_s(self._clock)
        return event.at_s if abs(now_s - event.at_s) < STEP_S else now_s

    def _end(self, event: HookEvent) -> None:
        self._without_gpus.discard(event.job_id)
        allocation = self.allocations.of_job(event.job_id)
        returned = self.returning.pop(event.job_id)
        last = (
            returned.restart if returned is not None else 0 if allocation is None else allocation.key.restart
        )
        is_returned = allocation is None and returned is not None and bool(event.positions)
        if is_returned and returned is not None:
            allocation = self._begin_returned(returned, event)
        # A requeued job's epilog carries the restart count of its next run.
        if event.positions and event.restart > last:
            self.returning.expect(event)
        if returned is not None or self.returning.is_expected(event.job_id):
            self._look_for_strangers()
        if is_returned and allocation is not None:
            self._tell_strangers_of(allocation, event.uptime_s)
        if allocation is not None and not self._started and is_before(event, allocation):
            self.taken.append(event)  # of a run before, which has been closed already
            return
        if allocation is not None:
            if self._started:
                self.watch_new()  # a job so short that its prolog was seen only now
            self._close(allocation, event)
            return
        if event.positions:
            log.info("job %d ended, of which no prolog was seen", event.job_id)
        self._ended.add(event.job_id, event.restart, certain=False, had_gpus=bool(event.positions))
        self.taken.append(event)

    def _begin_returned(self, returned: Returning, epilog: HookEvent) -> Allocation | None:
        """Open the run that ends with this epilog and had no prolog, if it was seen to begin."""
        if returned.began_s is None:
            self._events.tell("prolog_missing", job_id=epilog.job_id)
            return None
        log.info("job %d ran again without a prolog; recorded from the start of its cgroup", epilog.job_id)
        began = Allocation.from_prolog(epilog, self._cluster, self._name, self._wall_s_of(epilog))
        self._open(began.of_run(returned.restart, min(returned.began_s, epilog.uptime_s)))
        self.watch_new()
        return self.allocations.of_job(epilog.job_id)

    def _tell_strangers_of(self, returned: Allocation, end_s: float) -> None:
        """Let its devices know whether any job but this one, which is over, may have used them.

        If so, its use is a gap: processes that have ended cannot be told apart any more.
        """
        may_have_others = self._strangers.may_run_with(returned.key.job_id)
        devices = returned.devices.values() if self._inventory.can_be_shared else ()
        for watch in (self.watches[uuid] for uuid in devices if uuid in self.watches):
            if may_have_others:
                watch.held_unwatched(end_s)
            else:
                watch.strangers_until(returned.start_s)

    def _look_for_strangers(self) -> None:
        until_s = math.inf if self._strangers.are_possible else self._clock.monotonic()
        for watch in self.watches.values() if self._inventory.can_be_shared else ():
            watch.strangers_until(until_s)

    # What Slurm tells

    def learn(self, jobs: JobFacts) -> None:
        """What slurm-gpudbd says of all jobs on this node (docs/api.md, `jobs`)."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        told = [job for job_id, facts in jobs.items() if (job := ToldJob.from_facts(job_id, facts))]
        # Jobs whose epilog was lost leave this set when Slurm has forgotten them.
        self._without_gpus = jobs.keys() - {job.job_id for job in told}
        self._suspensions.learn(told, now_s)
        for job in self._reconciliation.begun(told, self.allocations, now_s, wall_s):
            self._begin_untold(job)
        if self._strangers.are_possible:
            self._strangers.learn(told, self.allocations, now_s)
            self._look_for_strangers()
        self.segments.grant(self._grants.learn(jobs, self.allocations))

    def ended(self, jobs: JobFacts) -> None:
        """What slurm-gpudbd says of open jobs that are over (docs/api.md, `ended`)."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        for over in self._reconciliation.over(jobs, self.allocations, now_s, wall_s):
            self._close_late(over.allocation, over.end_s)

    def _begin_untold(self, job: ToldJob) -> None:
        since_s = self.returning.began_s(job.job_id)
        if since_s is None:
            log.warning("job %d runs here without a known prolog; recorded from now on", job.job_id)
        else:
            log.info("job %d runs again without a prolog; recorded from the start of its cgroup", job.job_id)
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        before = self.allocations.of_job(job.job_id)
        if before is not None:
            self._close_late(before, min(now_s, max(before.start_s, now_s - (wall_s - job.start_s))))
        told = job.allocation(self._cluster, self._name, self._clock.boot_id(), now_s, wall_s, since_s)
        self._open(told, began_before=True)

    def _close_late(self, allocation: Allocation, end_s: float) -> None:
        """It ended a while ago, and its epilog is not to be expected any more."""
        now_s = self._clock.monotonic()
        job_id, ago_s = allocation.key.job_id, now_s - end_s
        log.warning("job %d ended %.0f s ago, of which no epilog was seen", job_id, ago_s)
        self._events.tell("epilog_missing", job_id=job_id, at_s=self._clock.wall() - ago_s)
        self._close_by_history(allocation, end_s)

    def _close_by_history(self, allocation: Allocation, end_s: float) -> None:
        """More was counted since it ended than can be taken back: what was written down before stands."""
        segment = self.segments.get(allocation)
        allocation = allocation.ended_before(end_s)
        for device, tally in segment.tallies.items() if segment is not None else ():
            self.watches[device].drop(tally)
        self.segments.close_late(allocation, end_s, self._clock.monotonic())
        self._forget(allocation)

    # Opening and closing

    def _open(self, allocation: Allocation, *, began_before: bool = False) -> None:
        """`began_before`: its job has held the devices before the allocation's start."""
        allocation = self._inventory.resolve(allocation)
        if began_before:
            self._held_unwatched(allocation, allocation.start_s)
        if len(allocation.devices) < len(allocation.positions) and not self._inventory.is_asking:
            log.warning(
                "job %d holds GPUs at positions %s; known are %s",
                allocation.key.job_id,
                list(allocation.positions),
                dict(allocation.devices),
            )
        self._put(allocation)
        if self._strangers.are_possible:
            self.returning.pop(allocation.key.job_id)
            self._look_for_strangers()

    def _put(self, allocation: Allocation) -> None:
        self.allocations.put(allocation)
        self._spool.save_allocation(allocation)

    def _close(self, allocation: Allocation, event: HookEvent) -> None:
        """It ends at the stamp of that event, which is kept until the final records are on disk."""
        segment = self.segments.get(allocation)
        if segment is None or not segment.tallies or event.boot_id != allocation.key.boot_id:
            self._close_unwatched(allocation, event)
            return
        end_s = event.uptime_s
        epilog = event if event.kind is HookKind.EPILOG else None
        if not segment.can_end_at(end_s):
            self._close_by_history(allocation, end_s)
            if epilog is not None:
                self.taken.append(epilog)
            return
        self._forget(allocation)
        segment.ending = True
        segment.epilog = epilog
        now_s = self._clock.monotonic()
        for device, tally in segment.tallies.items():
            tally.end_s = max(tally.start_s, end_s)
            self.watches[device].release(tally, now_s)

    def _close_unwatched(self, allocation: Allocation, event: HookEvent | None) -> None:
        same_boot = event is not None and event.boot_id == allocation.key.boot_id
        end_s = event.uptime_s if event is not None and same_boot else allocation.start_s
        epilog = event if event is not None and event.kind is HookKind.EPILOG else None
        allocation = allocation.ended_before(end_s)
        self._held_unwatched(allocation, end_s)
        self._forget(allocation)
        self._file(allocation, end_s, epilog)

    def _file(self, allocation: Allocation, end_s: float, epilog: HookEvent | None) -> None:
        """Write its final record, once its devices are told."""
        # What position it had in an earlier boot says nothing of the devices of this one.
        if allocation.key.boot_id == self._clock.boot_id():
            allocation = self._inventory.resolve(allocation)
            if self._untold.wait(allocation, end_s, epilog, self._clock.monotonic()):
                return
        self._conclude(allocation, end_s, epilog)

    def _conclude(self, allocation: Allocation, end_s: float, epilog: HookEvent | None) -> None:
        self.segments.close_unwatched(allocation, end_s)
        if epilog is not None:
            self.taken.append(epilog)

    def _forget(self, allocation: Allocation) -> None:
        self.allocations.remove(allocation)
        key = allocation.key
        self._ended.add(key.job_id, key.restart, prolog_at_s=allocation.prolog_at_s)

    def _held_unwatched(self, allocation: Allocation, until_s: float) -> None:
        """What its devices did by then may have been that job's doing, and is nobody else's."""
        if allocation.key.boot_id != self._clock.boot_id():
            return
        devices: set[str | None] = set(allocation.devices.values())
        if len(devices) < len(allocation.positions):
            devices.add(None)
        for device in devices:
            self._unwatched_until_s[device] = max(until_s, self._unwatched_until_s.get(device, until_s))
            if device in self.watches:
                self.watches[device].held_unwatched(until_s)

    # Watching

    @property
    def waits_for_devices(self) -> bool:
        """Does a job that is over wait for its devices to be told?"""
        return bool(self._untold)

    def resolve(self) -> None:
        """Find the devices of allocations that could not be told before."""
        for allocation in self.allocations:
            resolved = self._inventory.resolve(allocation)
            if resolved is not allocation:
                self._put(resolved)
        self._untold.resolve()

    def watch_new(self) -> None:
        """Begin to watch what is open and not watched yet."""
        now_s = self._clock.monotonic()
        for allocation in self.allocations:
            segment = self.segments.of(allocation)
            for uuid in allocation.devices.values():
                facts = self._inventory.answering.get(uuid)
                if uuid in segment.tallies:
                    continue
                if facts is None:
                    self._inventory.report_lost(allocation, uuid)
                    continue
                self._inventory.report_back(allocation, uuid, uuid)
                if uuid not in self.watches:
                    self.watches[uuid] = watch = self._new_watch(uuid)
                    for device in (uuid, None):
                        if device in self._unwatched_until_s:
                            watch.held_unwatched(self._unwatched_until_s[device])
                    if self._strangers.are_possible and self._inventory.can_be_shared:
                        watch.strangers_until(math.inf)
                self.watches[uuid].hold(self.segments.begin(segment, facts, now_s))

    def finish(self) -> None:
        """Make final what has ended and of which nothing more will be learnt."""
        now_s = self._clock.monotonic()
        if self.returning.expire():
            self._look_for_strangers()
        for untold in self._untold.over(now_s):
            self._conclude(untold.allocation, untold.end_s, untold.epilog)
        self.segments.remember_young(now_s)
        for watch in self.watches.values():
            for tally in watch.settled(now_s):
                self.segments.settle(tally, now_s)
        finished = self.segments.finish()
        self.taken += [segment.epilog for segment in finished if segment.epilog is not None]
        if finished and self._strangers.are_possible:
            self._look_for_strangers()

    def known(self) -> KnownJobs:
        """What is known of the jobs here, for telling where their processes should be."""
        return KnownJobs(
            owners=self.allocations.owners(),
            without_gpus=self._without_gpus,
            ended_s=self._ended.ended_s,
        )

    def jobs_on(self, uuid: str) -> list[int]:
        """Raw ids of the jobs that hold that device."""
        return [a.key.job_id for a in self.allocations if uuid in a.devices.values()]
