"""Find queued jobs that could never start after a change of limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slurm_gpu.policy.native.difference import LimitChange
from slurm_gpu.policy.native.fields import INHERITED
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind, LimitField, Limits

# Limits that Slurm checks each time it tries to start a job. Slurm checks other limits, such as
# MaxSubmitJobs, at submission.
_PER_TRES = frozenset({"GrpTRES", "MaxTRES", "MaxTRESPU", "MaxTRESPA"})
_PER_JOBS = frozenset({"GrpJobs", "MaxJobs", "MaxJobsPU", "MaxJobsPA"})
_QOS = "QOS"


# The default QOS of accounts, which exists in every slurmdbd.
_NORMAL = "normal"


@dataclass(frozen=True, slots=True)
class Stranded:
    """A queued job that by itself exceeds a new limit, or waits in a QOS that it may no longer use."""

    job: QueuedJob
    entity: Entity
    limit: LimitField
    # None if the job loses its QOS.
    value: int | None
    requested: int | None
    # A command after which the job can start; None if the job must request less.
    remedy: str | None = None

    def __str__(self) -> str:
        job = self.job
        if self.limit.name == _QOS:
            message = (
                f"job {job.job_id} of {job.user} waits in QOS {job.qos}: {self.entity} may no longer use it"
            )
            return message if self.remedy is None else f"{message}; `{self.remedy}` moves it"
        what = "could not run"
        if self.requested is not None and self.limit.name not in _PER_JOBS:
            what = f"requests {self.limit.amount(self.requested)} {self.limit.item}".rstrip()
        return f"job {job.job_id} of {job.user} {what}: {self.entity}, {self.limit.show(self.value)}"


def stranded(
    jobs: Iterable[QueuedJob],
    found: Mapping[Entity, Limits],
    steps: Iterable[LimitChange],
    partition_qos: Mapping[str, str | None] = MappingProxyType({}),
) -> tuple[Stranded, ...]:
    """Return pending jobs that could start under the limits `found`, but can never start after `steps`.

    `partition_qos` is the QOS of each partition.
    """
    after = {entity: dict(limits) for entity, limits in found.items()}
    for step in steps:
        limits = after.setdefault(step.entity, {})
        if step.new is None:
            limits.pop(step.limit, None)
        else:
            limits[step.limit] = step.new
    pending = [job for job in jobs if job.state == "PENDING"]
    return (
        *(one for job in pending if (one := _shut_out(job, found, after)) is not None),
        *(
            Stranded(job, *exceeded)
            for job in pending
            if not any(_exceeded(job, found, partition_qos))
            for exceeded in _exceeded(job, after, partition_qos)
        ),
    )


def _shut_out(
    job: QueuedJob, found: Mapping[Entity, Limits], after: Mapping[Entity, Limits]
) -> Stranded | None:
    """Return the job as stranded if its user or account may no longer use its QOS; None otherwise.

    Such a job waits indefinitely, with reason InvalidQOS.
    """
    names = {entity: _qos_of(entity, after) for entity in _associations(job)}
    job_qos = _named(job)
    lost = [entity for entity in names if job_qos & (_qos_of(entity, found) - names[entity])]
    if not lost or any(job_qos & those for those in names.values()):
        return None
    others = [_NORMAL] if job.qos != _NORMAL else sorted(set().union(*names.values()))
    remedy = f"scontrol update jobid={job.job_id} qos={others[0]}" if others else None
    return Stranded(job, lost[0], LimitField(_QOS, job.qos), None, None, remedy)


def _named(job: QueuedJob) -> set[str]:
    """Return the QOS in which the job may start; from Slurm 24.11 on, a job may name several QOS."""
    return set(job.qos.split(","))


def _qos_of(entity: Entity, limits: Mapping[Entity, Limits]) -> set[str]:
    return {limit.item for limit in limits.get(entity, {}) if limit.name == _QOS}


def _associations(job: QueuedJob) -> tuple[Entity, Entity]:
    return Entity(EntityKind.USER, job.account, job.user), Entity(EntityKind.ACCOUNT, job.account)


def _exceeded(
    job: QueuedJob, limits: Mapping[Entity, Limits], partition_qos: Mapping[str, str | None]
) -> Iterator[tuple[Entity, LimitField, int, int]]:
    user, account = _associations(job)
    of_user = limits.get(user, {})
    of_partitions = {partition_qos.get(name) or "" for name in job.partition.split(",")}
    for names in (_named(job), of_partitions):  # one QOS and one partition in which the job can start suffice
        in_qos = [list(_over(job, Entity(EntityKind.QOS, name), limits)) for name in sorted(names)]
        if all(in_qos):
            yield from itertools.chain(*in_qos)
    yield from _over(job, user, limits)
    for one in _over(job, account, limits):
        if one[1].name not in INHERITED or one[1] not in of_user:  # a user's own limit overrides it
            yield one


def _over(
    job: QueuedJob, entity: Entity, limits: Mapping[Entity, Limits]
) -> Iterator[tuple[Entity, LimitField, int, int]]:
    for limit, value in limits.get(entity, {}).items():
        requested = _requested_amount(job, limit)
        if requested is not None and requested > value:
            yield entity, limit, value, requested


def _requested_amount(job: QueuedJob, limit: LimitField) -> int | None:
    if limit.name in _PER_TRES:
        amount = job.tres_requested.get(limit.item)
        return None if amount is None else round(amount)
    if limit.name == "MaxWall":
        return None if job.time_limit_s is None else -(-job.time_limit_s // 60)
    return 1 if limit.name in _PER_JOBS else None
