"""Define the conditions and actions of the transitions in transitions.py.

Each action is one small step. The tables in transitions.py define which actions follow an event, in order.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.node.allocation.hooks import HookEvent
from slurm_gpu.node.allocation.tracker import Allocation, Allocations, EndedAllocation, is_before, is_of_run
from slurm_gpu.node.clock_step import STEP_S
from slurm_gpu.node.jobs.ended_runs import EndedRuns
from slurm_gpu.node.jobs.grants import Grants
from slurm_gpu.node.jobs.inventory import Inventory
from slurm_gpu.node.jobs.reconcile import Reconciliation, ReportedJob, UnknownJobs
from slurm_gpu.node.jobs.requeued import RequeuedJobs
from slurm_gpu.node.jobs.segments import OpenSegment, SegmentRegistry
from slurm_gpu.node.jobs.suspension import Suspensions
from slurm_gpu.node.jobs.unresolved import UnresolvedAllocations
from slurm_gpu.node.measure.watch import DeviceWatch
from slurm_gpu.node.process.job_cgroups import JobCgroups
from slurm_gpu.node.shipping.events import EventRecorder
from slurm_gpu.node.shipping.spool import Spool

log = logging.getLogger(__name__)


class AllocationActions(ABC):
    """The allocations of this node, the watches on their devices, and the steps that change them.

    `taken` contains hook events whose files may be removed once the spool is on disk; the caller that removes
    them also clears the list. `cluster` and `name`, the node's name, are used if a hook did not report them.
    """

    def __init__(
        self,
        *,
        name: str,
        cluster: str,
        clock: Clock,
        spool: Spool,
        events: EventRecorder,
        inventory: Inventory,
        suspensions: Suspensions,
        cgroups: JobCgroups,
        new_watch: Callable[[str], DeviceWatch],
    ) -> None:
        self._name, self._cluster, self._clock = name, cluster, clock
        self._spool, self._events, self._inventory = spool, events, inventory
        self._suspensions, self._new_watch = suspensions, new_watch
        self.allocations = Allocations()
        self.segments = SegmentRegistry(spool)
        self.watches: dict[str, DeviceWatch] = {}
        self.taken: list[HookEvent] = []
        # The time until which an unobserved job had, or may have had, each device. The key None means any
        # device.
        self._unobserved_until_s: dict[str | None, float] = {}
        self.returning = RequeuedJobs(cgroups, clock)
        self._unknown_jobs = UnknownJobs(self.returning)
        self._without_gpus: set[int] = set()
        self._ended = EndedRuns(spool, clock)
        self._grants = Grants()
        self._reconciliation = Reconciliation(self._ended, clock.monotonic(), self.returning.is_seen)
        self._unresolved = UnresolvedAllocations(inventory, clock.monotonic())
        self._started = False

    @abstractmethod
    def _end(self, allocation: Allocation, hook: HookEvent) -> None:
        """End an open allocation at the time of the hook."""

    @abstractmethod
    def _end_late(self, ended: EndedAllocation) -> None:
        """End an open allocation whose epilog is no longer expected."""

    @abstractmethod
    def _looked_up(self, ended: EndedAllocation) -> None:
        """Proceed with an ended allocation after its devices have been looked up."""

    # Conditions on a hook

    def has_gpus(self, hook: HookEvent) -> bool:
        """Return whether GPUs of this node are allocated to the job."""
        return bool(hook.positions)

    def is_recorded(self, prolog: HookEvent) -> bool:
        """Return whether a killed slurm-gpud had recorded the prolog but not removed the prolog's file."""
        allocation = self.allocations.of_job(prolog.job_id)
        is_open = allocation is not None and allocation.prolog_at_s == prolog.at_s
        return is_open or self._ended.began_at(prolog.job_id, prolog.at_s)

    def is_of_reported_run(self, prolog: HookEvent) -> bool:
        """Return whether Slurm reported the run before its prolog was received."""
        allocation = self.allocations.of_job(prolog.job_id)
        return allocation is not None and allocation.is_reported and is_of_run(prolog, allocation)

    def is_requeued(self, epilog: HookEvent) -> bool:
        """Return whether the job was requeued: its epilog then contains the next run's restart count."""
        allocation = self.allocations.of_job(epilog.job_id)
        last = self.returning.restart(epilog.job_id) if allocation is None else allocation.key.restart
        return bool(epilog.positions) and epilog.restart > last

    def runs_again(self, epilog: HookEvent) -> bool:
        """Return whether the run that ends now was detected by its new cgroup."""
        return bool(epilog.positions) and self.returning.is_seen(epilog.job_id)

    def runs_again_and_is_requeued(self, epilog: HookEvent) -> bool:
        """Return whether `runs_again` and `is_requeued` are both true."""
        return self.runs_again(epilog) and self.is_requeued(epilog)

    def is_of_earlier_run(self, epilog: HookEvent) -> bool:
        """Return whether the epilog belongs to a run that an earlier slurm-gpud closed."""
        allocation = self._open_one(epilog)
        return not self._started and is_before(epilog, allocation)

    # Actions on a hook

    def take(self, hook: HookEvent) -> None:
        """Mark the hook's file for removal."""
        self.taken.append(hook)

    def note_without_gpus(self, prolog: HookEvent) -> None:
        """Record that the job runs here without GPUs."""
        self._without_gpus.add(prolog.job_id)

    def open_from_prolog(self, prolog: HookEvent) -> None:
        """Open the allocation at its prolog."""
        self._open(Allocation.from_prolog(prolog, self._cluster, self._name, self._wall_s_of(prolog)))

    def confirm(self, prolog: HookEvent) -> None:
        """Replace the run's data, which came from Slurm's report, with the data of its prolog."""
        self._put(self._open_one(prolog).confirmed(prolog))

    def end_without_epilog(self, prolog: HookEvent) -> None:
        """Report that the epilog of the previous run is missing, and end that run now."""
        log.warning("job %d starts again, but its previous run had no epilog", prolog.job_id)
        self._events.record("epilog_missing", job_id=prolog.job_id)
        self._end(self._open_one(prolog), prolog)

    def end(self, epilog: HookEvent) -> None:
        """End the run at its epilog."""
        if self._started:
            self.watch_new()  # the prolog of a short job may have been read just now
        self._end(self._open_one(epilog), epilog)

    def expect_next_run(self, epilog: HookEvent) -> None:
        """Expect the requeued job to run here again."""
        self.returning.expect(epilog)
        self._update_unknown_jobs()

    def stop_expecting(self, epilog: HookEvent) -> None:
        """Stop expecting the job's next run."""
        self.forget_return(epilog.job_id)

    def report_missing_prolog(self, epilog: HookEvent) -> None:
        """Report the end of a run whose prolog was not received."""
        self._events.record("prolog_missing", job_id=epilog.job_id)

    def note_unseen_end(self, epilog: HookEvent) -> None:
        """Remember the end of a run that was not recorded."""
        if epilog.positions:
            log.info("job %d ended without a known prolog", epilog.job_id)
        self._ended.add(epilog.job_id, epilog.restart, certain=False, had_gpus=bool(epilog.positions))

    def open_returned_run(self, epilog: HookEvent) -> None:
        """Open the allocation of a run without a prolog, starting at the creation of its cgroup."""
        returned = self.returning.pop(epilog.job_id)
        assert returned is not None
        assert returned.began_s is not None
        log.info(
            "job %d ran again without a prolog; it is recorded from the start of its cgroup", epilog.job_id
        )
        began = Allocation.from_prolog(epilog, self._cluster, self._name, self._wall_s_of(epilog))
        self._open(began.of_run(returned.restart, min(returned.began_s, epilog.uptime_s)))
        self.watch_new()
        self._update_unknown_jobs()

    def exclude_unknown_jobs(self, epilog: HookEvent) -> None:
        """Set whether other jobs may have used the devices of a run that followed a requeue.

        If so, the run's own use is unknown, because ended processes cannot be attributed to jobs.
        """
        returned = self._open_one(epilog)
        may_have_others = self._unknown_jobs.may_run_with(returned.key.job_id)
        devices = returned.devices.values() if self._inventory.can_be_shared else ()
        for watch in (self.watches[uuid] for uuid in devices if uuid in self.watches):
            if may_have_others:
                watch.mark_unobserved_until(epilog.uptime_s)
            else:
                watch.set_unknown_jobs_until(returned.start_s)

    # Actions on Slurm's reply

    def open_reported(self, job: ReportedJob) -> None:
        """Open the allocation of a run without a known prolog, starting now or at its cgroup's creation."""
        since_s = self.returning.began_s(job.job_id)
        if since_s is None:
            log.warning(
                "job %d is running here without a known prolog; it is recorded from now on", job.job_id
            )
        else:
            log.info(
                "job %d is running again without a prolog; it is recorded from the start of its cgroup",
                job.job_id,
            )
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        allocation = job.allocation(self._cluster, self._name, self._clock.boot_id(), now_s, wall_s, since_s)
        self._open(allocation, began_before=True)

    def end_earlier_run(self, job: ReportedJob) -> None:
        """End the run that was still open when Slurm reported the job's next run."""
        before = self.allocations.of_job(job.job_id)
        assert before is not None
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        self._end_late(
            EndedAllocation(before, min(now_s, max(before.start_s, now_s - (wall_s - job.start_s))))
        )

    def forget_return(self, job_id: int) -> None:
        """Stop expecting the job's next run."""
        self.returning.pop(job_id)
        self._update_unknown_jobs()

    # Conditions and actions on an allocation that ends

    def continue_in_new_segment(self, allocation: Allocation) -> None:
        """Continue an allocation of an earlier slurm-gpud process in a new segment."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        self._open(self.segments.continue_segment(allocation, now_s, wall_s), began_before=True)

    def is_unsampled(self, ended: EndedAllocation) -> bool:
        """Return whether this process has not sampled any device of the allocation."""
        segment = self.segments.get(ended.allocation)
        return segment is None or not segment.tallies

    def cannot_be_rewound(self, ended: EndedAllocation) -> bool:
        """Return whether usage counted after the allocation's end can no longer be subtracted."""
        segment = self.segments.get(ended.allocation)
        return segment is not None and not segment.can_end_at(ended.end_s)

    def may_be_resolved(self, ended: EndedAllocation) -> bool:
        """Return whether devices that are still unknown may soon become known."""
        # Positions from an earlier boot do not identify devices in this boot.
        is_of_this_boot = ended.allocation.key.boot_id == self._clock.boot_id()
        return is_of_this_boot and self._unresolved.can_resolve(ended.allocation, self._clock.monotonic())

    def report_missing_epilog(self, ended: EndedAllocation) -> None:
        """Report that the job ended without an epilog."""
        now_s = self._clock.monotonic()
        job_id, ago_s = ended.allocation.key.job_id, now_s - ended.end_s
        log.warning("job %d ended %.0f s ago without an epilog", job_id, ago_s)
        self._events.record("epilog_missing", job_id=job_id, at_s=self._clock.wall() - ago_s)

    def close_by_checkpoint(self, ended: EndedAllocation) -> None:
        """Close the allocation, using the last checkpoint before its end."""
        segment = self.segments.get(ended.allocation)
        allocation = ended.allocation.ended_before(ended.end_s)
        for device, tally in segment.tallies.items() if segment is not None else ():
            self.watches[device].drop_segment(tally)
        self.segments.close_late(allocation, ended.end_s, self._clock.monotonic())
        self._forget(allocation)

    def take_epilog(self, ended: EndedAllocation) -> None:
        """Mark the epilog's file for removal, if there is one."""
        if ended.epilog is not None:
            self.taken.append(ended.epilog)

    def sample_once_more(self, ended: EndedAllocation) -> None:
        """End the allocation, but keep watching its devices until the driver's last samples have arrived."""
        segment = self.segments.get(ended.allocation)
        assert segment is not None
        self._forget(ended.allocation)
        segment.ending, segment.epilog = True, ended.epilog
        now_s = self._clock.monotonic()
        for device, tally in segment.tallies.items():
            tally.end_s = max(tally.start_s, ended.end_s)
            self.watches[device].end_segment(tally, now_s)

    def look_up_devices(self, ended: EndedAllocation) -> None:
        """End the allocation, and look up those of its devices that are still unknown."""
        allocation = ended.allocation.ended_before(ended.end_s)
        self._mark_unobserved(allocation, ended.end_s)
        self._forget(allocation)
        if allocation.key.boot_id == self._clock.boot_id():
            allocation = self._inventory.resolve(allocation)
        self._looked_up(replace(ended, allocation=allocation))

    def wait_for_devices(self, ended: EndedAllocation) -> None:
        """Keep the spooled allocation and the epilog's file until the devices are known."""
        self._unresolved.wait(ended, self._clock.monotonic())

    def close_by_last_record(self, ended: EndedAllocation) -> None:
        """Close the allocation, using its last record in the spool."""
        self.segments.close_unwatched(ended.allocation, ended.end_s)

    def close_settled(self, segment: OpenSegment) -> None:
        """Close the segment, whose records are all final."""
        self.segments.close_settled(segment)
        if segment.epilog is not None:
            self.taken.append(segment.epilog)

    # Watching

    def watch_new(self) -> None:
        """Start watching the devices of open allocations that are not watched yet."""
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
                        if device in self._unobserved_until_s:
                            watch.mark_unobserved_until(self._unobserved_until_s[device])
                    if self._unknown_jobs.are_possible and self._inventory.can_be_shared:
                        watch.set_unknown_jobs_until(math.inf)
                self.watches[uuid].start_segment(self.segments.begin(segment, facts, now_s))

    def _update_unknown_jobs(self) -> None:
        until_s = math.inf if self._unknown_jobs.are_possible else self._clock.monotonic()
        for watch in self.watches.values() if self._inventory.can_be_shared else ():
            watch.set_unknown_jobs_until(until_s)

    def _mark_unobserved(self, allocation: Allocation, until_s: float) -> None:
        """Record that an unobserved job may have used the allocation's devices until `until_s`."""
        if allocation.key.boot_id != self._clock.boot_id():
            return
        devices: set[str | None] = set(allocation.devices.values())
        if len(devices) < len(allocation.positions):
            devices.add(None)
        for device in devices:
            self._unobserved_until_s[device] = max(until_s, self._unobserved_until_s.get(device, until_s))
            if device in self.watches:
                self.watches[device].mark_unobserved_until(until_s)

    # Shared by several actions

    def _open_one(self, hook: HookEvent) -> Allocation:
        allocation = self.allocations.of_job(hook.job_id)
        assert allocation is not None
        return allocation

    def _wall_s_of(self, event: HookEvent) -> float:
        """Return the event's wall-clock time, converted if the clock has been set since."""
        if event.boot_id != self._clock.boot_id():
            return event.at_s
        now_s = event.uptime_s + wall_ahead_s(self._clock)
        return event.at_s if abs(now_s - event.at_s) < STEP_S else now_s

    def _open(self, allocation: Allocation, *, began_before: bool = False) -> None:
        """Open an allocation; `began_before` is true if its job had the devices before `start_s`."""
        allocation = self._inventory.resolve(allocation)
        if began_before:
            self._mark_unobserved(allocation, allocation.start_s)
        if len(allocation.devices) < len(allocation.positions) and not self._inventory.is_asking:
            log.warning(
                "job %d was allocated GPUs at positions %s; known GPUs: %s",
                allocation.key.job_id,
                list(allocation.positions),
                dict(allocation.devices),
            )
        self._put(allocation)
        if self._unknown_jobs.are_possible:
            self.forget_return(allocation.key.job_id)

    def _put(self, allocation: Allocation) -> None:
        self.allocations.put(allocation)
        self._spool.save_allocation(allocation)

    def _forget(self, allocation: Allocation) -> None:
        self.allocations.remove(allocation)
        key = allocation.key
        self._ended.add(key.job_id, key.restart, prolog_at_s=allocation.prolog_at_s)
