"""In any queue, a job that exceeds a limit reported as redundant also exceeds another limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.language.amounts import GpuLimit, LimitStep, RuleLimits
from slurm_gpu.policy.language.coverage import covered_limits
from slurm_gpu.policy.language.limits import flat_limits
from slurm_gpu.policy.language.model import Group, Hours, JobKind, Mode, Per, Policy, PolicyRule

ACCOUNTS, USERS, PARTITIONS = ("vision", "nlp"), ("alice", "bob"), ("gpu", "long")
TYPES = ("a100", "v100")


@dataclass(frozen=True)
class Job:
    """The measures of a job that the limits below use."""

    user: str
    account: str
    partition: str
    a100: int
    v100: int
    cpus: int
    tasks: int
    running: bool
    walltime_s: int
    day_h: int
    week_h: int
    month_h: int
    kind: JobKind
    day: int
    minute: int

    @property
    def gpus(self) -> int:
        return self.a100 + self.v100


SMALL = st.integers(0, 4)
JOB = st.builds(
    Job,
    user=st.sampled_from(USERS),
    account=st.sampled_from(ACCOUNTS),
    partition=st.sampled_from(PARTITIONS),
    a100=SMALL,
    v100=SMALL,
    cpus=SMALL,
    tasks=st.integers(1, 3),
    running=st.booleans(),
    walltime_s=st.integers(1, 5),
    day_h=SMALL,
    week_h=SMALL,
    month_h=SMALL,
    kind=st.sampled_from(JobKind),
    day=st.integers(0, 1),
    minute=st.integers(0, 3),
)

LIMIT = st.integers(0, 8)
MGPU = LIMIT.map(lambda n: n * 1000)
GPUS = st.builds(GpuLimit, MGPU) | st.builds(
    GpuLimit, st.none(), st.dictionaries(st.sampled_from(TYPES), MGPU, min_size=1)
)
STEPS = st.dictionaries(st.integers(0, 3), st.integers(1, 5), min_size=1, max_size=3).map(
    lambda steps: tuple(LimitStep(gpus * 1000, steps[gpus]) for gpus in sorted(steps))
)
OF_JOB = st.builds(
    RuleLimits,
    gpus=st.none() | GPUS,
    cpus=st.none() | STEPS,
    array_tasks=st.none() | STEPS,
    walltime=st.none() | STEPS,
    partitions=st.none() | st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True).map(tuple),
    gpu_types=st.none() | st.lists(st.sampled_from(TYPES), min_size=1, unique=True).map(tuple),
)
PERIODS = ("day", "week", "month")
TYPED_PERIODS = tuple(f"{period}:{gpu_type}" for period in PERIODS for gpu_type in TYPES)
OF_SUM = st.builds(
    RuleLimits,
    gpus_total=st.none() | GPUS,
    gpus_running=st.none() | GPUS,
    jobs_total=st.none() | LIMIT,
    jobs_running=st.none() | LIMIT,
    cpus_total=st.none() | LIMIT,
    cpus_running=st.none() | LIMIT,
    gpu_hours=st.none() | st.dictionaries(st.sampled_from([*PERIODS, *TYPED_PERIODS]), LIMIT, min_size=1),
    cpu_hours=st.none() | st.dictionaries(st.sampled_from(PERIODS), LIMIT, min_size=1),
)


def names(allowed: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...] | None]:
    return st.none() | st.lists(st.sampled_from(allowed), min_size=1, unique=True).map(tuple)


GROUP = st.builds(Group, st.just("g"), names(USERS), st.none(), names(ACCOUNTS), st.none(), names(PARTITIONS))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    groups = {name: replace(draw(GROUP), name=name) for name in ("g", "h")}
    rules = []
    for position in range(draw(st.integers(1, 4))):
        per = draw(st.sampled_from(Per))
        rules.append(
            PolicyRule(
                id=f"r{position}",
                group=draw(st.sampled_from(["g", "h"])),
                per=per,
                why="w",
                limits=draw(OF_JOB if per is Per.JOB else OF_SUM),
                mode=draw(st.sampled_from([Mode.ADVISE, Mode.ENFORCE, Mode.ENFORCE])),
                when=draw(st.sampled_from([None, None, Hours(frozenset({0}), (0, 2))])),
                kind=draw(st.sampled_from([None, None, JobKind.BATCH])),
            )
        )
    return Policy(groups=groups, rules=tuple(rules))


def belongs(job: Job, group: Group) -> bool:
    return all(
        allowed is None or value in allowed
        for allowed, value in (
            (group.users, job.user),
            (group.accounts, job.account),
            (group.partitions, job.partition),
        )
    )


def applies(rule: PolicyRule, job: Job, policy: Policy) -> bool:
    when = rule.when
    now = when is None or (job.day in when.days and when.from_min <= job.minute < when.to_min)
    return belongs(job, policy.groups[rule.group]) and rule.kind in (None, job.kind) and now


def owner_of(per: Per, job: Job) -> str | None:
    """Return the user or account whose jobs are counted together; None for all jobs."""
    return {Per.USER: job.user, Per.JOB: job.user, Per.ACCOUNT: job.account}.get(per)


def exceeded(rule: PolicyRule, key: str, job: Job, queue: list[Job], policy: Policy) -> bool:
    """Return whether a job to which the rule applies exceeds its limit `key`, given the other jobs."""
    limit = flat_limits(rule.limits)[key]
    base, _, part = key.partition(":")
    counted = [
        other
        for other in (*queue, job)
        if belongs(other, policy.groups[rule.group]) and owner_of(rule.per, other) == owner_of(rule.per, job)
    ]
    if isinstance(limit, list):
        limit = next((step["limit"] for step in reversed(limit) if step["mgpu"] <= job.gpus * 1000), math.inf)
    if base == "walltime":
        return job.walltime_s > limit
    if base == "partitions":
        return job.partition not in (rule.limits.partitions or ())
    if base == "gpu_types":
        return any(getattr(job, kind) > 0 and kind not in (rule.limits.gpu_types or ()) for kind in TYPES)
    what, _, state = base.partition("_")
    if base in ("gpu_hours", "cpu_hours"):
        each = 1 if base == "gpu_hours" else job.cpus
        amount = each * sum(hours(other, part) for other in counted)
    elif state in ("total", "running"):
        jobs = [other for other in counted if other.running or state == "total"]
        amount = sum(of_one(other, what, part) * other.tasks for other in jobs)
    else:
        amount = job.tasks if base == "array_tasks" else of_one(job, what, part)
    assert isinstance(limit, int | float)
    return amount > limit


def of_one(job: Job, what: str, gpu_type: str) -> int:
    """Return the amount of one array task."""
    if what == "gpus":
        return 1000 * (job.gpus if gpu_type == "" else int(getattr(job, gpu_type)))
    return {"jobs": 1, "cpus": job.cpus}[what]


def hours(job: Job, part: str) -> int:
    """Return the hours in a period; those of a job with A100 GPUs are all on A100 GPUs."""
    period, _, gpu_type = part.partition(":")
    if gpu_type and gpu_type != ("a100" if job.a100 else "v100"):
        return 0
    # A day is in one week and one month; a week may be in two months.
    return {"day": job.day_h, "week": job.day_h + job.week_h, "month": job.day_h + job.month_h}[period]


@given(policies(), st.lists(JOB, max_size=3), JOB)
def test_a_redundant_limit_is_exceeded_only_together_with_another(
    policy: Policy, queue: list[Job], job: Job
) -> None:
    for covered in covered_limits(policy):
        rule, by = covered.rule, covered.by
        if applies(rule, job, policy) and exceeded(rule, covered.key, job, queue, policy):
            assert applies(by, job, policy)
            assert exceeded(by, covered.by_key, job, queue, policy)
            assert by.mode is Mode.ENFORCE or rule.mode is Mode.ADVISE


@given(policies())
def test_at_least_one_limit_is_not_redundant(policy: Policy) -> None:
    redundant = {(covered.rule.id, covered.key) for covered in covered_limits(policy)}
    keys = {(rule.id, key) for rule in policy.rules for key in flat_limits(rule.limits)}
    assert redundant < keys or not keys
    # A limit that makes another redundant may itself be redundant, but never in a cycle.
    by = {
        (covered.rule.id, covered.key): (covered.by.id, covered.by_key) for covered in covered_limits(policy)
    }
    for start in redundant:
        seen = {start}
        while (start := by.get(start, ("", ""))) in redundant:
            assert start not in seen
            seen.add(start)
