"""Move allocations between states according to the tables of transitions.

Hooks open and close allocations. Slurm's list of jobs replaces missing hooks: prologs that ran before
slurm-gpud started, and lost epilogs.
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
    """Moves the allocations of this node between states, following reports from hooks, Slurm and devices."""

    def state_of(self, job_id: int) -> AllocationState:
        """Return the state of the job on this node, ignoring its ended allocations."""
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
        """Apply the first row whose state, event and condition match; return the new state."""
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
        """Continue open allocations of an earlier process, each as a new segment.

        An allocation that has ended, according to these events or in an earlier boot, is closed with its last
        record in the spool.
        """
        events = list(events)
        restored = self._spool.allocations()
        for allocation in restored:
            before = self.allocations.of_job(allocation.key.job_id)
            if before is not None:  # the job started again before this allocation was closed
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
        if not self._spool.is_whole:  # other jobs may have used the devices until now
            self._unobserved_until_s[None] = self._clock.monotonic()
            self._unknown_jobs.lost_spool()
        self._started = True
        self.watch_new()

    def apply(self, hook: HookEvent) -> None:
        """Apply a hook event: the start or end of a job."""
        event = AllocationEvent.PROLOG
        if hook.kind is HookKind.EPILOG:
            event = AllocationEvent.EPILOG
            self._without_gpus.discard(hook.job_id)
        self._move(transitions.ON_HOOK, self.state_of(hook.job_id), event, hook)

    def update_jobs(self, jobs: JobFacts) -> None:
        """Apply slurm-gpudbd's report on all jobs of this node (docs/api.md, `jobs`)."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        reported = [job for job_id, facts in jobs.items() if (job := ReportedJob.from_facts(job_id, facts))]
        # If a job's epilog was lost, the job leaves this set once Slurm no longer reports it.
        self._without_gpus = jobs.keys() - {job.job_id for job in reported}
        self._suspensions.update_jobs(reported, now_s)
        for job in self._reconciliation.begun(reported, self.allocations, now_s, wall_s):
            state = self.state_of(job.job_id)
            self._move(transitions.ON_REPORT, state, AllocationEvent.RUNNING, job)
        self._expire()
        if self._unknown_jobs.are_possible:
            self._unknown_jobs.update_jobs(reported, self.allocations, now_s)
            self._update_unknown_jobs()
        self.segments.grant(self._grants.update_jobs(jobs, self.allocations))

    def end_jobs(self, jobs: JobFacts) -> None:
        """Apply slurm-gpudbd's report on ended jobs (docs/api.md, `ended`)."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        for over in self._reconciliation.over(jobs, self.allocations, now_s, wall_s):
            self._end_late(over)

    def finish(self) -> None:
        """Close ended allocations whose last samples have arrived."""
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
        """Return whether an ended allocation is waiting for its devices to become known."""
        return bool(self._unresolved)

    def resolve(self) -> None:
        """Look up the unknown devices of all allocations."""
        for allocation in self.allocations:
            resolved = self._inventory.resolve(allocation)
            if resolved is not allocation:
                self._put(resolved)
        self._unresolved.resolve()

    def known(self) -> KnownJobs:
        """Return the known jobs, which Crosscheck compares with processes."""
        return KnownJobs(
            owners=self.allocations.owners(),
            without_gpus=self._without_gpus,
            ended_s=self._ended.ended_s,
        )

    def jobs_on(self, uuid: str) -> list[int]:
        """Return the raw IDs of the jobs to which the device is allocated."""
        return [a.key.job_id for a in self.allocations if uuid in a.devices.values()]
