"""Sum up use by user, by group, and by user and account within a group (pure functions)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu.controller.queue.amounts import Amounts, CountingFacts, amounts_of
from slurm_gpu.controller.queue.selection import selects
from slurm_gpu.policy.lua.installed import GroupInForce, PolicyInForce, RuleInForce
from slurm_gpu.slurm.queue import CountedJob, JobPhase


class Subject(NamedTuple):
    """The subject of a sum: a user, a group, or a user or account within a group."""

    user: str | None
    group: str | None
    account: str | None = None


class UsageOwner(NamedTuple):
    """The properties by which rules distinguish jobs."""

    uid: int
    user: str
    account: str
    qos: str
    partition: str


@dataclass(slots=True)
class UsageTotals:
    """Sums over jobs; GPUs in mgpu, memory in MiB; `by_type` counts only GPUs of a known type."""

    jobs: int = 0
    mgpu: int = 0
    cpus: int = 0
    mib: int = 0
    nodes: int = 0
    by_type: dict[str, int] = field(default_factory=dict)

    def add(self, other: UsageTotals) -> None:
        """Add the jobs of another sum."""
        self.jobs += other.jobs
        self.mgpu += other.mgpu
        self.cpus += other.cpus
        self.mib += other.mib
        self.nodes += other.nodes
        for kind, mgpu in other.by_type.items():
            self.by_type[kind] = self.by_type.get(kind, 0) + mgpu


@dataclass(slots=True)
class RunningAndPending:
    """The sums over running and over pending jobs; limits on totals apply to both together."""

    running: UsageTotals = field(default_factory=UsageTotals)
    pending: UsageTotals = field(default_factory=UsageTotals)
    last_pending: int | None = None
    """ID of the user's latest pending job; None if no job is pending, and for sums of groups."""

    def saw_pending(self, job_id: int | None) -> None:
        """Record a pending job of the user."""
        if job_id is not None and (self.last_pending is None or job_id > self.last_pending):
            self.last_pending = job_id


@dataclass(frozen=True, slots=True)
class Usage:
    """Use by subject; a subject without use is not in `by_subject`."""

    by_subject: Mapping[Subject, RunningAndPending]
    uids: Mapping[str, int]

    def of(self, user: str | None, group: str | None, account: str | None = None) -> RunningAndPending:
        """Return the use of one subject; all values are 0 if the subject has no jobs."""
        return self.by_subject.get(Subject(user, group, account), RunningAndPending())

    def with_users(self, uids: Mapping[str, int]) -> Usage:
        """Return the same use, with the UIDs of more users."""
        return Usage(self.by_subject, {**uids, **self.uids})


def owner_of(job: CountedJob) -> UsageOwner:
    """Return the properties by which rules distinguish a job."""
    return UsageOwner(job.uid, job.user, job.account, job.qos, job.partition)


def subjects_of(owner: UsageOwner, groups: Iterable[GroupInForce]) -> list[Subject]:
    """Return the subjects whose sums include the jobs of this owner."""
    found = [Subject(owner.user, None)]
    for group in groups:
        if group.matches(owner.uid, owner.account, owner.qos, owner.partition):
            found += (Subject(owner.user, group.name), Subject(None, group.name))
            if group.by_account:
                found.append(Subject(None, group.name, owner.account.lower()))
    return found


class _TaskClass(NamedTuple):
    """The properties that all tasks of one class share."""

    owner: UsageOwner
    running: bool
    mgpu: int
    cpus: int
    mib: int
    nodes: int
    by_type: tuple[tuple[str, int], ...]
    billing: int


@dataclass(slots=True)
class _Tally:
    """The counts of one class of tasks."""

    kind: _TaskClass
    tasks: int = 0
    last_pending: int | None = None


class UsageCounter:
    """Sums up queues; the amounts of a job are recomputed only when the job changes."""

    def __init__(self) -> None:
        self._facts: CountingFacts | None = None
        self._kinds: dict[int, tuple[CountedJob, _TaskClass]] = {}
        """Task classes by the id() of the job object; the object is stored to keep its id() unique."""

    def usage_of(
        self, jobs: Iterable[CountedJob], groups: Iterable[GroupInForce], facts: CountingFacts
    ) -> Usage:
        """Sum up running and pending jobs; each array task counts as a job."""
        by_owner: dict[UsageOwner, RunningAndPending] = {}
        for tally in self._tallies(jobs, facts):
            both = by_owner.setdefault(tally.kind.owner, RunningAndPending())
            _count(both.running if tally.kind.running else both.pending, tally)
            both.saw_pending(tally.last_pending)
        groups = list(groups)
        by_subject: dict[Subject, RunningAndPending] = {}
        for owner, use in by_owner.items():
            for subject in subjects_of(owner, groups):
                both = by_subject.setdefault(subject, RunningAndPending())
                both.running.add(use.running)
                both.pending.add(use.pending)
                if subject.user is not None:
                    both.saw_pending(use.last_pending)
        return Usage(by_subject, {owner.user: owner.uid for owner in by_owner})

    def amounts_of(self, job: CountedJob) -> Amounts:
        """Return the resources of one task of a job in the last `usage_of` call."""
        _, kind = self._kinds[id(job)]
        return Amounts(kind.mgpu, kind.cpus, kind.mib, kind.nodes, dict(kind.by_type), kind.billing)

    def _tallies(self, jobs: Iterable[CountedJob], facts: CountingFacts) -> Iterable[_Tally]:
        before = self._kinds if facts == self._facts else {}
        self._facts, self._kinds = facts, {}
        tallies: dict[_TaskClass, _Tally] = {}
        for job in jobs:
            if job.phase is JobPhase.ENDED:
                continue
            known = before.get(id(job))
            known = known if known is not None and known[0] is job else (job, _kind_of(job, facts))
            self._kinds[id(job)] = known
            kind = known[1]
            tally = tallies.get(kind)
            if tally is None:
                tally = tallies[kind] = _Tally(kind)
            tally.tasks += job.n_tasks
            if not kind.running and (tally.last_pending is None or job.job_id > tally.last_pending):
                tally.last_pending = job.job_id
        return tallies.values()


def usage_of(jobs: Iterable[CountedJob], groups: Iterable[GroupInForce], facts: CountingFacts) -> Usage:
    """Sum up the jobs in one queue."""
    return UsageCounter().usage_of(jobs, groups, facts)


def selecting_rules(policy: PolicyInForce) -> tuple[RuleInForce, ...]:
    """Return the rules that sum over only some jobs of their groups."""
    return tuple(rule for rule in policy.rules if rule.counts_some_jobs)


def usage_by_rule(
    policy: PolicyInForce, jobs: Sequence[CountedJob], facts: CountingFacts
) -> dict[str, Usage]:
    """Return the use by the jobs that count for each of these rules, by the id of the rule."""
    return {
        rule.id: usage_of((job for job in jobs if selects(rule, job, facts)), policy.groups, facts)
        for rule in selecting_rules(policy)
    }


def _kind_of(job: CountedJob, facts: CountingFacts) -> _TaskClass:
    amounts = amounts_of(job, facts)
    by_type = tuple(sorted(amounts.mgpu_by_type.items()))
    running = job.phase is JobPhase.RUNNING
    return _TaskClass(
        owner_of(job),
        running,
        amounts.mgpu,
        amounts.cpus,
        amounts.mib,
        amounts.nodes,
        by_type,
        amounts.billing,
    )


def _count(use: UsageTotals, tally: _Tally) -> None:
    kind, tasks = tally.kind, tally.tasks
    use.jobs += tasks
    use.mgpu += tasks * kind.mgpu
    use.cpus += tasks * kind.cpus
    use.mib += tasks * kind.mib
    use.nodes += tasks * kind.nodes
    for name, mgpu in kind.by_type:
        use.by_type[name] = use.by_type.get(name, 0) + tasks * mgpu
