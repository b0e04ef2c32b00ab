"""What is in use, by user, by user within a group, and by group: a pure function of the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu.controller.amounts import Facts, amounts_of
from slurm_gpu.policy.installed import GroupInForce
from slurm_gpu.slurm.queue import CountedJob, Phase


class Subject(NamedTuple):
    """Whose use it is: a user's in all, a user's in a group, or a group's in all."""

    user: str | None
    group: str | None


class Owner(NamedTuple):
    """Jobs that no rule can tell apart."""

    uid: int
    user: str
    account: str
    qos: str
    partition: str


@dataclass(slots=True)
class Use:
    """Sums over jobs; GPUs in thousandths, memory in MiB; `by_type` holds typed GPUs alone."""

    jobs: int = 0
    mgpu: int = 0
    cpus: int = 0
    mib: int = 0
    nodes: int = 0
    by_type: dict[str, int] = field(default_factory=dict)

    def add(self, other: Use) -> None:
        """Count the other's jobs too."""
        self.jobs += other.jobs
        self.mgpu += other.mgpu
        self.cpus += other.cpus
        self.mib += other.mib
        self.nodes += other.nodes
        for kind, mgpu in other.by_type.items():
            self.by_type[kind] = self.by_type.get(kind, 0) + mgpu


@dataclass(slots=True)
class RunningAndPending:
    """The two halves of every limit on a total."""

    running: Use = field(default_factory=Use)
    pending: Use = field(default_factory=Use)
    last_pending: int | None = None
    """Id of one user's pending job that came last; None where none waits, and for a group's in all."""

    def saw_pending(self, job_id: int | None) -> None:
        """A pending job of that user."""
        if job_id is not None and (self.last_pending is None or job_id > self.last_pending):
            self.last_pending = job_id


@dataclass(frozen=True, slots=True)
class Usage:
    """Who uses what. A subject that uses nothing is not in `by_subject`."""

    by_subject: Mapping[Subject, RunningAndPending]
    uids: Mapping[str, int]

    def of(self, user: str | None, group: str | None) -> RunningAndPending:
        """The use of one subject; zeros where it has no jobs."""
        return self.by_subject.get(Subject(user, group), RunningAndPending())


def owner_of(job: CountedJob) -> Owner:
    """The part of a job that rules look at."""
    return Owner(job.uid, job.user, job.account, job.qos, job.partition)


def subjects_of(owner: Owner, groups: Iterable[GroupInForce]) -> list[Subject]:
    """Whose use a job of this owner is."""
    found = [Subject(owner.user, None)]
    for group in groups:
        if group.matches(owner.uid, owner.account, owner.qos, owner.partition):
            found += (Subject(owner.user, group.name), Subject(None, group.name))
    return found


def usage_of(jobs: Iterable[CountedJob], groups: Iterable[GroupInForce], facts: Facts) -> Usage:
    """Sum up running and pending jobs; each task of an array is a job."""
    by_owner: dict[Owner, RunningAndPending] = {}
    for job in jobs:
        if job.phase is Phase.ENDED:
            continue
        both = by_owner.setdefault(owner_of(job), RunningAndPending())
        _count(both.running if job.phase is Phase.RUNNING else both.pending, job, facts)
        if job.phase is Phase.PENDING:
            both.saw_pending(job.job_id)
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


def _count(use: Use, job: CountedJob, facts: Facts) -> None:
    amounts, tasks = amounts_of(job, facts), job.n_tasks
    use.jobs += tasks
    use.mgpu += tasks * amounts.mgpu
    use.cpus += tasks * amounts.cpus
    use.mib += tasks * amounts.mib
    use.nodes += tasks * amounts.nodes
    for kind, mgpu in amounts.mgpu_by_type.items():
        use.by_type[kind] = use.by_type.get(kind, 0) + tasks * mgpu
