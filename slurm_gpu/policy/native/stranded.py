"""Queued jobs that could never start once limits have changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurm_gpu.policy.native.difference import Step
from slurm_gpu.policy.native.fields import INHERITED
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind, LimitField, Limits

# Slurm asks for these anew each time it tries to start a job; MaxSubmitJobs and its like bind at submission.
_PER_TRES = frozenset({"GrpTRES", "MaxTRES", "MaxTRESPU"})
_PER_JOBS = frozenset({"GrpJobs", "MaxJobs", "MaxJobsPU"})


@dataclass(frozen=True, slots=True)
class Stranded:
    """A queued job that alone exceeds a limit to come."""

    job: QueuedJob
    entity: Entity
    limit: LimitField
    value: int
    asked: int

    def __str__(self) -> str:
        job = self.job
        what = f"asks for {self.asked} {self.limit.item}".rstrip()
        if self.limit.name == "MaxWall":
            what = f"asks for {self.asked} minutes"
        elif self.limit.name in _PER_JOBS:
            what = "could not run"
        return f"job {job.job_id} of {job.user} {what}: {self.entity}, {self.limit.show(self.value)}"


def stranded(
    jobs: Iterable[QueuedJob], found: Mapping[Entity, Limits], steps: Iterable[Step]
) -> tuple[Stranded, ...]:
    """Pending jobs that `steps` would keep from ever starting, and that could start before."""
    after = {entity: dict(limits) for entity, limits in found.items()}
    for step in steps:
        limits = after.setdefault(step.entity, {})
        if step.new is None:
            limits.pop(step.limit, None)
        else:
            limits[step.limit] = step.new
    return tuple(
        Stranded(job, *exceeded)
        for job in jobs
        if job.state == "PENDING" and not any(_exceeded(job, found))
        for exceeded in _exceeded(job, after)
    )


def _exceeded(
    job: QueuedJob, limits: Mapping[Entity, Limits]
) -> Iterator[tuple[Entity, LimitField, int, int]]:
    account = Entity(EntityKind.ACCOUNT, job.account)
    user = Entity(EntityKind.USER, job.account, job.user)
    of_user = limits.get(user, {})
    for entity in (Entity(EntityKind.QOS, job.qos), user, account):
        for limit, value in limits.get(entity, {}).items():
            if entity == account and limit.name in INHERITED and limit in of_user:
                continue  # the user's own counts in its place
            asked = _asked(job, limit)
            if asked is not None and asked > value:
                yield entity, limit, value, asked


def _asked(job: QueuedJob, limit: LimitField) -> int | None:
    if limit.name in _PER_TRES:
        amount = job.tres_requested.get(limit.item)
        return None if amount is None else round(amount)
    if limit.name == "MaxWall":
        return None if job.time_limit_s is None else -(-job.time_limit_s // 60)
    return 1 if limit.name in _PER_JOBS else None
