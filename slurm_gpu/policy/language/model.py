"""What policy.yaml says, typed (docs/contracts.md, section 3). GPUs are thousandths (mgpu), times seconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slurm_gpu.config.yaml_source import Location


class OnError(StrEnum):
    """What happens to a job when our own code fails."""

    ALLOW = "allow"
    DENY = "deny"


class Mode(StrEnum):
    """How far a rule goes: write it down, tell the user, or refuse the job."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


class Per(StrEnum):
    """Over what a rule's limits are summed."""

    USER = "user"
    GROUP = "group"
    JOB = "job"


class JobKind(StrEnum):
    """Whether a job came with a script (sbatch) or without one (srun, salloc)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class HoursPeriod(StrEnum):
    """Over what GPU-hours are counted: the calendar's day, ISO week or month in the site's time zone."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """GPUs of all types together, or of each named type; exactly one of the two is given."""

    all_mgpu: int | None = None
    by_type_mgpu: Mapping[str, int] = field(default_factory=dict)
    """Type in lower case → mgpu."""


@dataclass(frozen=True, slots=True)
class WalltimeStep:
    """The time limit of jobs that have this many GPUs or more, up to the next step."""

    from_mgpu: int
    limit_s: int


@dataclass(frozen=True, slots=True)
class RuleLimits:
    """Upper bounds; None where the rule sets none. 0 lets nothing through.

    Those up to `gpu_types` are of one job, the others sums over the jobs of a user or a group: `*_total` over
    running and pending ones, `*_running` over running ones. limits.py knows each by its key in the file.
    """

    gpus: GpuLimit | None = None
    nodes: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    cpus_per_gpu: int | None = None
    memory_per_gpu_mib: int | None = None
    array_tasks: int | None = None
    """Tasks of one job array."""
    tasks: int | None = None
    """MPI tasks (--ntasks)."""
    walltime: tuple[WalltimeStep, ...] | None = None
    """Time limit, ascending by GPUs; jobs with fewer GPUs than the first step have none."""
    partitions: tuple[str, ...] | None = None
    """Allowed ones."""
    gpu_types: tuple[str, ...] | None = None
    """Allowed ones, in lower case."""

    gpus_total: GpuLimit | None = None
    gpus_running: GpuLimit | None = None
    jobs_total: int | None = None
    """Each task of an array is one job."""
    jobs_running: int | None = None
    cpus_total: int | None = None
    cpus_running: int | None = None
    memory_total_mib: int | None = None
    memory_running_mib: int | None = None
    nodes_running: int | None = None
    gpu_hours: Mapping[HoursPeriod, float] | None = None
    """GPU-hours used in the running period, and those that the job may use."""


@dataclass(frozen=True, slots=True)
class Hours:
    """When a rule holds, by the moment of submission in the site's time zone."""

    days: frozenset[int]
    """0 is Monday."""
    from_min: int = 0
    """Minutes since midnight; the first that belongs to it."""
    to_min: int = 1440
    """The first that does not."""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that a rule is for: all the given conditions must match; none at all matches every job."""

    name: str
    users: tuple[str, ...] | None = None
    unix_groups: tuple[str, ...] | None = None
    accounts: tuple[str, ...] | None = None
    qos: tuple[str, ...] | None = None
    partitions: tuple[str, ...] | None = None
    until: dt.date | None = None
    """The last day on which the group exists."""


@dataclass(frozen=True, slots=True)
class RuleException:
    """Limits that replace the named ones of a rule for one user, up to and including a day."""

    rule: str
    user: str
    limits: RuleLimits
    until: dt.date
    why: str
    granted_by: str | None
    location: Location


@dataclass(frozen=True, slots=True)
class Adjust:
    """Within which bounds the weekly review may move a limit on what runs; in the unit of the limit."""

    key: str
    """Of the limit in policy.yaml."""
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule with its reason."""

    id: str
    group: str
    per: Per
    why: str
    limits: RuleLimits
    mode: Mode = Mode.ENFORCE
    on_error: OnError = OnError.ALLOW
    when: Hours | None = None
    """None: always."""
    kind: JobKind | None = None
    """None: both."""
    adjust: tuple[Adjust, ...] = ()
    location: Location = ()


class BundleMode(StrEnum):
    """How far a bundle goes: `fit` writes in what the job left unsaid and advises on the rest."""

    FIT = "fit"
    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What so many GPUs may take along; with 0 GPUs, what a job without GPUs may have."""

    name: str
    mgpu: int
    cpus: int | None = None
    memory_mib: int | None = None
    partitions: tuple[str, ...] | None = None
    """Where it is for; None: everywhere. A job without GPUs is kept to these."""
    gpu_types: tuple[str, ...] | None = None
    mode: BundleMode = BundleMode.ADVISE
    why: str | None = None


@dataclass(frozen=True, slots=True)
class GpuOwner:
    """A group whose GPUs are lent while they lie idle, and come back when it needs them."""

    group: str
    accounts: tuple[str, ...]
    """Of the group, in lower case."""
    gpus: int
    qos: str
    """In which its own jobs run, and nobody else's; in lower case, as Slurm keeps it."""
    lend_in: str
    """The QOS of jobs that borrow; in lower case."""
    return_within_s: int
    location: Location = ()


URGENT = "urgent"
"""The group and the rule that `urgent:` stands for, and its QOS where it names none."""


@dataclass(frozen=True, slots=True)
class Urgent:
    """Jobs that start before all others: who may have them, and how many at once."""

    groups: tuple[str, ...]
    """Whose people may."""
    qos: str
    """That users ask for; in lower case, as Slurm keeps it."""
    jobs_running: int
    """Of all of them together; the others wait."""
    preempts: tuple[str, ...]
    """QOS whose jobs are requeued where there is no room else; in lower case."""
    why: str


class Goal(StrEnum):
    """For what jobs are put on one GPU together."""

    THROUGHPUT = "throughput"
    CONSIDERATE = "considerate"


@dataclass(frozen=True, slots=True)
class Colocation:
    """Jobs of one GPU that share it with others."""

    may: tuple[str, ...] | None = None
    """Groups whose jobs share where they ask for it; None for all jobs."""
    must: tuple[str, ...] = ()
    """Groups whose jobs share unasked."""
    mode: Mode = Mode.OBSERVE
    goal: Goal = Goal.THROUGHPUT
    slowdown: float | None = None
    """By which factor nobody is slowed down beyond; None where the goal is throughput."""
    together: int = 2
    """So many on one GPU at most."""
    largest: float = 0.75
    """Who needs more than this part of a GPU runs alone."""
    hold_s: int = 300
    """So long a job waits for its place at most."""
    planner: str = "annealing"
    """Who decides whom they share with, of those of slurm_gpu.colocation."""
    model: Path | None = None
    """What a planner learned: a file on the controller."""
    why: str = ""


class IdleAction(StrEnum):
    """What becomes of a job whose GPUs were never used."""

    CANCEL = "cancel"
    HOLD = "hold"
    """Back into the queue, held until its owner releases it."""


@dataclass(frozen=True, slots=True)
class CancelIdle:
    """Jobs of which no GPU ever computed: when their owners are warned, and when they are ended."""

    after_s: int
    warn_s: tuple[int, ...]
    """Ascending, all less than `after_s`."""
    groups: tuple[str, ...] | None = None
    """Whose jobs; None for all."""
    exempt: tuple[str, ...] = ()
    """Groups whose jobs never."""
    how: IdleAction = IdleAction.CANCEL
    mode: Mode = Mode.OBSERVE
    why: str = ""


@dataclass(frozen=True, slots=True)
class Manages:
    """What the native backstop may write to."""

    qos: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """A site's own job_submit.lua, asked before or after ours."""

    before: Path | None = None
    after: Path | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy, checked in itself; whether its names exist here is another question (names.py)."""

    contact: str | None = None
    manages: Manages = field(default_factory=Manages)
    chain: Chain = field(default_factory=Chain)
    on_error: OnError = OnError.ALLOW
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    """In the order of the file: a job belongs to the first that fits it."""
    owners: tuple[GpuOwner, ...] = ()
    urgent: Urgent | None = None
    """Its group and its rule stand among the others."""
    colocation: Colocation | None = None
    """None: every job has its GPU for itself."""
    cancel_idle: CancelIdle | None = None
    """None: nothing is ended."""
    groups: Mapping[str, Group] = field(default_factory=dict)
    rules: tuple[PolicyRule, ...] = ()
    exceptions: tuple[RuleException, ...] = ()
