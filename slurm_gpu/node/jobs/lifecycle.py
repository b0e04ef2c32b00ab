"""From a job's allocation of GPUs to its records: the events, moved through the table of transitions.

Hooks open and close. Where a hook was lost, Slurm's report does: for jobs older than slurm-gpud, and for
epilogs that never came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from slurm_gpu.node.allocation.hooks import HookEvent, HookKind
from slurm_gpu.node.allocation.tracker import Allocation, EndedAllocation, epilog_between
from slurm_gpu.node.jobs import transitions
from slurm_gpu.node.jobs.allocation_actions import AllocationActions
from slurm_gpu.node.jobs.cross_check import KnownJobs
from slurm_gpu.node.jobs.reconcile import ReportedJob
from slurm_gpu.node.jobs.transitions import AllocationEvent, AllocationState, Transition
from slurm_gpu.node.shipping.shipment import JobFacts

_Subject = TypeVar("_Subject")


class LifeCycle(AllocationActions):
    """Moves the allocations of this node from state to state as hooks, Slurm and devices report."""

    def state_of(self, job_id: int) -> AllocationState:
        """Return the state of that job here; its allocations that have ended are no part of it."""
        if self.allocations.of_job(job_id) is not None:
            return AllocationState.OPEN
        is_expected = self.returning.is_expected(job_id)
        return AllocationState.EXPECTED if is_expected else AllocationState.ABSENT

    def _move(
        self,
        table: Sequence[Transition[_Subject]],
        state: AllocationState,
        event: AllocationEvent,
        subject: _Subject,
    ) -> AllocationState:
        """Apply the first row of that state and event whose condition is true; return the new state."""
        rows = (row for row in table if row.state is state and row.event is event)
        found = next(row for row in rows if row.condition is None or row.condition(self, subject))
        for action in found.actions:
            action(self, subject)
        return found.to

    def _move_ended(self, state: AllocationState, event: AllocationEvent, ended: EndedAllocation) -> None:
        self._move(transitions.ON_END, state, event, ended)

    def _end(self, allocation: Allocation, hook: HookEvent) -> None:
        is_same_boot = hook.boot_id == allocation.key.boot_id
        end_s = hook.uptime_s if is_same_boot else allocation.start_s
        epilog = hook if hook.kind is HookKind.EPILOG else None
        event = AllocationEvent.ENDED if is_same_boot else AllocationEvent.REBOOTED
        self._move_ended(AllocationState.OPEN, event, EndedAllocation(allocation, end_s, epilog))

    def _end_late(self, ended: EndedAllocation) -> None:
        self._move_ended(AllocationState.OPEN, AllocationEvent.OVER, ended)

    def _looked_up(self, ended: EndedAllocation) -> None:
        self._move_ended(AllocationState.UNRESOLVED, AllocationEvent.LOOKED_UP, ended)

    # Events

    def start(self, events: Iterable[HookEvent]) -> None:
        """Continue what an earlier process left: each open allocation continues as a new segment.

        One that ended meanwhile, by these events or in an earlier boot, is closed with the last record of it
        in the spool.
        """
        events = list(events)
        restored = self._spool.allocations()
        for allocation in restored:
            before = self.allocations.of_job(allocation.key.job_id)
            if before is not None:  # it was about to be closed when its job began again
                epilog = epilog_between(before, allocation, events)
                end_s = max(before.start_s, allocation.begun_s if epilog is None else epilog.uptime_s)
                replaced = EndedAllocation(before, end_s, epilog)
                self._move_ended(AllocationState.OPEN, AllocationEvent.REPLACED, replaced)
                if epilog is not None:
                    events.remove(epilog)
            self.allocations.put(allocation)
        for event in events:
            self.apply(event)
        for allocation in self.allocations:
            if allocation.key.boot_id != self._clock.boot_id():
                rebooted = EndedAllocation(allocation, allocation.start_s)
                self._move_ended(AllocationState.OPEN, AllocationEvent.REBOOTED, rebooted)
            elif allocation in restored:
                self._move(
                    transitions.ON_RESTART, AllocationState.OPEN, AllocationEvent.RESTARTED, allocation
                )
        if not self._spool.is_whole:  # which other jobs had which devices until now is not known
            self._unobserved_until_s[None] = self._clock.monotonic()
            self._unknown_jobs.lost_spool()
        self._started = True
        self.watch_new()

    def apply(self, hook: HookEvent) -> None:
        """Take in that a job begins or ends."""
        event = AllocationEvent.PROLOG
        if hook.kind is HookKind.EPILOG:
            event = AllocationEvent.EPILOG
            self._without_gpus.discard(hook.job_id)
        self._move(transitions.ON_HOOK, self.state_of(hook.job_id), event, hook)

    def update_jobs(self, jobs: JobFacts) -> None:
        """Take in what slurm-gpudbd reports of all jobs on this node (docs/api.md, `jobs`)."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        told = [job for job_id, facts in jobs.items() if (job := ReportedJob.from_facts(job_id, facts))]
        # Jobs whose epilog was lost leave this set when Slurm has forgotten them.
        self._without_gpus = jobs.keys() - {job.job_id for job in told}
        self._suspensions.update_jobs(told, now_s)
        for job in self._reconciliation.begun(told, self.allocations, now_s, wall_s):
            state = self.state_of(job.job_id)
            self._move(transitions.ON_REPORT, state, AllocationEvent.RUNNING, job)
        self._expire()
        if self._unknown_jobs.are_possible:
            self._unknown_jobs.update_jobs(told, self.allocations, now_s)
            self._update_unknown_jobs()
        self.segments.grant(self._grants.update_jobs(jobs, self.allocations))

    def end_jobs(self, jobs: JobFacts) -> None:
        """Take in what slurm-gpudbd reports of open jobs that are over (docs/api.md, `ended`)."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        for over in self._reconciliation.over(jobs, self.allocations, now_s, wall_s):
            self._end_late(over)

    def finish(self) -> None:
        """Make final what has ended and of which nothing more will be learnt."""
        now_s = self._clock.monotonic()
        self._expire()
        for ended in self._unresolved.over(now_s):
            self._move_ended(AllocationState.UNRESOLVED, AllocationEvent.WAITED, ended)
        self.segments.remember_young(now_s)
        for watch in self.watches.values():
            for tally in watch.settled(now_s):
                self.segments.settle(tally, now_s)
        settled = self.segments.settled()
        for segment in settled:
            self._move(transitions.ON_SETTLED, AllocationState.ENDING, AllocationEvent.SETTLED, segment)
        if settled and self._unknown_jobs.are_possible:
            self._update_unknown_jobs()

    def _expire(self) -> None:
        for job_id in self.returning.overdue():
            self._move(transitions.ON_EXPIRY, AllocationState.EXPECTED, AllocationEvent.EXPIRED, job_id)

    # Devices

    @property
    def waits_for_devices(self) -> bool:
        """Return whether a job that is over waits for its devices to be known."""
        return bool(self._unresolved)

    def resolve(self) -> None:
        """Find the devices of allocations that were not known before."""
        for allocation in self.allocations:
            resolved = self._inventory.resolve(allocation)
            if resolved is not allocation:
                self._put(resolved)
        self._unresolved.resolve()

    def known(self) -> KnownJobs:
        """Return what is known of the jobs here, by which the place of their processes is checked."""
        return KnownJobs(
            owners=self.allocations.owners(),
            without_gpus=self._without_gpus,
            ended_s=self._ended.ended_s,
        )

    def jobs_on(self, uuid: str) -> list[int]:
        """Return the raw ids of the jobs that were allocated that device."""
        return [a.key.job_id for a in self.allocations if uuid in a.devices.values()]
