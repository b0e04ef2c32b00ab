"""Define the typed model of policy.yaml (docs/contracts.md, section 3).

Numbers of GPUs are in thousandths (mgpu), times in seconds. The fields declare how
slurm_gpu.config.decoder decodes the file.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.config.decoder import REQUIRED, FromPlace, Items, Key
from slurm_gpu.config.value_types import ValueType, choice, duration, fixed, number, path, whole_number
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.amounts import GpuTypeNames, JobAmounts, PartitionNames, RuleLimits
from slurm_gpu.policy.language.job_changes import DefaultOptions, OverLimitOptions, SetOptions
from slurm_gpu.policy.language.job_conditions import JobConditions
from slurm_gpu.policy.language.value_types import (
    ACCOUNT_PATTERN,
    ACCOUNT_WILDCARD,
    ALL_DAYS,
    COUNT,
    CPUS,
    DATE,
    DAYS,
    GPUS,
    GROUP_NAME,
    HOURS,
    ID,
    MEMORY,
    PARTITION_WILDCARD,
    QOS,
    QOS_PATTERN,
    QOS_WILDCARD,
    TEXT,
    UNIX_GROUP,
    USER_NAME,
    USER_WILDCARD,
    WALLTIME,
    WHOLE_GPUS,
)

PLANNERS = ("annealing", "greedy", "blossom", "lp", "fgd", "tetris", "sjf")
# Options of sbatch that rules can require or forbid, as in options.lua; `gpu_type` is the type of the GPUs.
OPTIONS = (
    "account",
    "array",
    "comment",
    "constraint",
    "dependency",
    "exclude",
    "exclusive",
    "gpu_type",
    "licenses",
    "mem",
    "nodelist",
    "partition",
    "qos",
    "reservation",
    "time",
)
# The name of the group and the rule that `urgent:` adds; also its default QOS.
URGENT = "urgent"

_NAMES = Items(least=1)
UserWildcards = Annotated[tuple[Annotated[str, USER_WILDCARD], ...], _NAMES]
UnixGroupNames = Annotated[tuple[Annotated[str, UNIX_GROUP], ...], _NAMES]
QosWildcards = Annotated[tuple[Annotated[str, QOS_WILDCARD], ...], _NAMES]
QosPatterns = Annotated[tuple[Annotated[str, QOS_PATTERN], ...], _NAMES]
AccountPatterns = Annotated[tuple[Annotated[str, ACCOUNT_PATTERN], ...], _NAMES]
AccountWildcards = Annotated[tuple[Annotated[str, ACCOUNT_WILDCARD], ...], _NAMES]
PartitionWildcards = Annotated[tuple[Annotated[str, PARTITION_WILDCARD], ...], _NAMES]
GroupNames = Annotated[tuple[Annotated[str, GROUP_NAME], ...], _NAMES]
_AT_KEY = FromPlace(lambda at: str(at[-1]))
_AT_PLACE = FromPlace(lambda at: at)
_SCRIPT = path("/etc/slurm/site_job_submit.lua")
# The bounds depend on the rule, so slurm_gpu.policy.language.check_adjust checks them.
_ADJUST = ValueType("bounds", "{gpus_running: [8, 24]}", lambda value: value)


class OnError(StrEnum):
    """The decision on a job when slurm-gpu's own code fails."""

    ALLOW = "allow"
    DENY = "deny"


class Mode(StrEnum):
    """The effect of a rule: log the violation, advise the user, change the job, or refuse it."""

    OBSERVE = "observe"
    ADVISE = "advise"
    FIT = "fit"
    ENFORCE = "enforce"


# The modes of settings that do not support `fit`: all except rules and bundles.
_UNFITTED = choice((Mode.OBSERVE, Mode.ADVISE, Mode.ENFORCE))


class Per(StrEnum):
    """The jobs over which a rule's limits are summed."""

    USER = "user"
    ACCOUNT = "account"
    GROUP = "group"
    JOB = "job"


class JobKind(StrEnum):
    """The kind of a job: batch with a script (sbatch), or interactive without a script (srun, salloc)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Need(StrEnum):
    """Whether jobs must or must not name an option."""

    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class JobTime(StrEnum):
    """The time of a job that decides whether a rule applies: its submission, or the time when it may run."""

    SUBMISSION = "submission"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Hours:
    """The times at which a rule applies, in the site's time zone; Monday is 0.

    Hours past midnight end after minute 1440, and count as part of the day on which they begin.
    """

    days: Annotated[frozenset[int], DAYS, "Days of the week on which the hours begin."] = ALL_DAYS
    minutes: Annotated[tuple[int, int], HOURS, Key("hours"), "Hours of the day."] = (0, 1440)
    at: Annotated[JobTime, "Whether the submission or any part of the possible run must be in the hours."] = (
        JobTime.SUBMISSION
    )

    @property
    def from_min(self) -> int:
        """Return the minute since midnight from which the rule applies."""
        return self.minutes[0]

    @property
    def to_min(self) -> int:
        """Return the minute since midnight at which the rule stops applying; over 1440 on the next day."""
        return self.minutes[1]


class Dated:
    """The days on which a group or an exception applies, in the site's time zone; None sets no bound."""

    __slots__ = ()
    from_day: dt.date | None
    until: dt.date | None

    @property
    def days(self) -> tuple[dt.date, dt.date]:
        """Return the first and the last day."""
        return self.from_day or dt.date.min, self.until or dt.date.max

    def applies_on(self, day: dt.date) -> bool:
        """Return whether the group or exception applies on a day."""
        first, last = self.days
        return first <= day <= last

    def days_json(self) -> dict[str, str]:
        """Return the bounds that are set, by their keys in policy.yaml."""
        bounds = {"from": self.from_day, "until": self.until}
        return {key: day.isoformat() for key, day in bounds.items() if day is not None}

    def days_text(self) -> str:
        """Describe the bounds that are set, such as "from 2026-12-01 until 2026-12-31"."""
        return " ".join(f"{key} {day}" for key, day in self.days_json().items())


@dataclass(frozen=True, slots=True)
class Group(Dated):
    """The jobs that match all given conditions; without conditions, every job matches.

    Names may have wildcards, except those of UNIX groups.
    """

    name: Annotated[str, _AT_KEY]
    users: Annotated[UserWildcards | None, "Users."] = None
    unix_groups: Annotated[UnixGroupNames | None, "UNIX groups."] = None
    accounts: Annotated[AccountWildcards | None, "Accounts."] = None
    qos: Annotated[QosWildcards | None, "QOS."] = None
    partitions: Annotated[PartitionWildcards | None, "Partitions."] = None
    all_of: Annotated[GroupNames, Key("in"), "Required groups."] = ()
    none_of: Annotated[GroupNames, Key("not"), "Excluded groups."] = ()
    from_day: Annotated[dt.date | None, DATE, Key("from"), "First day."] = None
    until: Annotated[dt.date | None, DATE, "Last day."] = None
    # The jobs in words, if tiers.py created the group; None for groups in the file.
    label: str | None = None


@dataclass(frozen=True, slots=True)
class RuleException(Dated):
    """Limits that replace those of a rule for one user or for the jobs of a group."""

    rule: Annotated[str, TEXT, "The id of a rule without `per: group`."]
    user: Annotated[str | None, USER_NAME, FromPlace(lambda _: None), "The user."]
    limits: Annotated[RuleLimits, _NAMES, "Limits that replace those of the rule."] = field(
        default_factory=RuleLimits
    )
    at_least: Annotated[JobAmounts, _NAMES, "Minimums that replace those of the rule."] = field(
        default_factory=JobAmounts
    )
    exactly: Annotated[JobAmounts, _NAMES, "Exact amounts that replace those of the rule."] = field(
        default_factory=JobAmounts
    )
    why: Annotated[str, TEXT, REQUIRED, "The reason."] = ""
    from_day: Annotated[dt.date | None, DATE, Key("from"), "First day."] = None
    until: Annotated[dt.date | None, DATE, "Last day."] = None
    granted_by: Annotated[str | None, TEXT, "The person who granted the exception."] = None
    group: Annotated[str | None, TEXT, "A group, instead of `user`."] = None
    location: Annotated[Location, _AT_PLACE] = ()

    @property
    def whom(self) -> str:
        """Return the user, or the group in words."""
        return self.user or f"group {self.group}"


@dataclass(frozen=True, slots=True)
class Adjust:
    """Bounds, in the limit's unit, within which the weekly adjustment may move a limit on running jobs."""

    key: str
    low: int
    high: int


_Options = Mapping[Annotated[str, choice(OPTIONS)], Need]


@dataclass(frozen=True, slots=True)
class Tier:
    """The limits of the jobs of one group that are in no earlier tier."""

    group: Annotated[str | None, TEXT, Key("for"), "The group; by default all other jobs."] = None
    limits: Annotated[RuleLimits, _NAMES, "Limits; by default none."] = field(default_factory=RuleLimits)
    at_least: Annotated[JobAmounts, _NAMES, "Minimums."] = field(default_factory=JobAmounts)
    exactly: Annotated[JobAmounts, _NAMES, "Exact amounts."] = field(default_factory=JobAmounts)
    options: Annotated[_Options, _NAMES, "Options."] = field(default_factory=dict)
    why: Annotated[str | None, TEXT, "The reason."] = None
    mode: Annotated[Mode | None, "The mode."] = None
    location: Annotated[Location, _AT_PLACE] = ()


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule with its reason."""

    id: Annotated[str, ID, "The name shown in refusals."]
    # "" if the rule has tiers and applies to all jobs.
    group: Annotated[str, TEXT, Key("for"), FromPlace(lambda _: ""), "The group; optional with tiers."]
    per: Annotated[Per, "The scope of the rule's limits."]
    why: Annotated[str, TEXT, "The reason, shown in refusals."]
    limits: Annotated[RuleLimits, _NAMES, "Maximums."] = field(default_factory=RuleLimits)
    at_least: Annotated[JobAmounts, _NAMES, "Minimums of one job; keys up to walltime."] = field(
        default_factory=JobAmounts
    )
    # Empty in a checked policy, because check.py moves these amounts into `limits` and `at_least`.
    exactly: Annotated[JobAmounts, _NAMES, "Exact amounts of one job."] = field(default_factory=JobAmounts)
    options: Annotated[_Options, _NAMES, "Options of submissions."] = field(default_factory=dict)
    tiers: Annotated[tuple[Tier, ...], _NAMES, "Only the first that matches a job applies."] = ()
    set: Annotated[SetOptions | None, _NAMES, "Options that each job gets (`mode: fit`)."] = None
    defaults: Annotated[DefaultOptions | None, _NAMES, "Options for jobs that do not specify them."] = None
    over_limit: Annotated[
        OverLimitOptions | None, _NAMES, "Options for jobs over a limit, instead of a refusal (`mode: fit`)."
    ] = None
    mode: Annotated[Mode, "Log violations, warn the user, change the job, or refuse it."] = Mode.OBSERVE
    on_error: Annotated[OnError, "The decision if slurm-gpu itself fails."] = OnError.ALLOW
    when: Annotated[Hours | None, _NAMES, "The times at which it applies."] = None
    hard: Annotated[bool, "Count hours that pending and running jobs may still use."] = False
    carry_over: Annotated[bool, "Add the unused part of the previous period's limit."] = False
    jobs: Annotated[JobConditions | None, _NAMES, "Only jobs that may meet all of these conditions."] = None
    kind: Annotated[JobKind | None, "Only jobs with a script (batch) or without (interactive)."] = None
    adjust: Annotated[tuple[Adjust, ...], _ADJUST, "Bounds for the weekly adjustment."] = ()
    location: Annotated[Location, _AT_PLACE] = ()
    # The rule in the file from which tiers.py created this part; None for rules in the file.
    part_of: PolicyRule | None = None

    @property
    def changes_jobs(self) -> bool:
        """Return whether the rule changes jobs in `mode: fit`; such a rule refuses no job."""
        tables = (self.set, self.defaults, self.over_limit)
        return self.mode is Mode.FIT or any(table is not None for table in tables)

    @property
    def whole(self) -> PolicyRule:
        """Return the rule in the file."""
        return self.part_of or self

    @property
    def with_limits(self) -> tuple[PolicyRule | Tier, ...]:
        """Return the tables in the file that may set limits of the rule."""
        return (self, *self.tiers)


class BundleMode(StrEnum):
    """The mode of a bundle: `fit` sets options that the job omits, and advises on the others."""

    FIT = "fit"
    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources that a job with this many GPUs may have; 0 means jobs without GPUs."""

    name: Annotated[str, _AT_KEY]
    mgpu: Annotated[int, GPUS, Key("gpus"), "Number of GPUs for these amounts; 0: jobs without GPUs."]
    cpus: Annotated[int | None, CPUS, "CPUs."] = None
    memory_mib: Annotated[int | None, MEMORY, "Memory."] = None
    partitions: Annotated[
        PartitionNames | None,
        "The bundle's partitions; with `gpus: 0`, the only partitions that jobs may use.",
    ] = None
    gpu_types: Annotated[GpuTypeNames | None, "GPU types to which the bundle applies."] = None
    mode: Annotated[BundleMode, "`fit` adds missing options and advises on the rest."] = BundleMode.OBSERVE
    why: Annotated[str | None, TEXT, "The reason."] = None


@dataclass(frozen=True, slots=True)
class GpuOwner:
    """A group whose idle GPUs are lent until the group needs them. QOS are in lower case, as in Slurm."""

    group: Annotated[str, _AT_KEY]
    # The accounts of the group, in lower case.
    accounts: Annotated[tuple[str, ...], FromPlace(lambda _: ())]
    gpus: Annotated[int, WHOLE_GPUS, "The number of GPUs owned."]
    qos: Annotated[
        str,
        QOS,
        FromPlace(lambda at: f"sg-{at[-1]}".lower()),
        "The QOS of the owner's jobs; by default `sg-GROUP`.",
    ]
    lend_in: Annotated[str, QOS, "The QOS of jobs that borrow GPUs."]
    return_within_s: Annotated[int, WALLTIME, "The longest time until an owner's job starts."]
    location: Annotated[Location, _AT_PLACE] = ()


@dataclass(frozen=True, slots=True)
class Urgent:
    """Jobs that start before all others. QOS are in lower case, as in Slurm."""

    groups: Annotated[GroupNames, Key("for"), "Permitted groups, defined by users, unix_groups or accounts."]
    jobs_running: Annotated[int, COUNT, "Maximum number of running jobs."]
    why: Annotated[str, TEXT, "The reason."]
    qos: Annotated[str, QOS, "The QOS that users request."] = URGENT
    preempts: Annotated[
        tuple[Annotated[str, QOS], ...], _NAMES, "QOS whose jobs are requeued for urgent jobs."
    ] = ()


class Goal(StrEnum):
    """The goal by which co-runners are chosen."""

    THROUGHPUT = "throughput"
    CONSIDERATE = "considerate"


@dataclass(frozen=True, slots=True)
class Colocation:
    """Jobs that share a GPU."""

    allowed_groups: Annotated[GroupNames | None, "Groups whose jobs may share GPUs; by default all."] = None
    required_groups: Annotated[GroupNames, "Groups whose jobs always share GPUs."] = ()
    mode: Annotated[Mode, _UNFITTED, "Only log, advise the user, or share GPUs."] = Mode.OBSERVE
    goal: Annotated[Goal, "With considerate, no job exceeds `slowdown`."] = Goal.THROUGHPUT
    slowdown: Annotated[float | None, number(1, 10, "1.10"), "The largest slowdown; by default 1.10."] = None
    jobs_per_gpu: Annotated[int, whole_number(2, 8, "2"), "Maximum number of jobs per GPU."] = 2
    max_gpu_fraction: Annotated[
        float, number(0, 1, "0.75"), "Jobs that need a larger part of a GPU run alone."
    ] = 0.75
    # The minimum wait of 10 s gives slurm-gpuctld time to act.
    max_wait_s: Annotated[int, duration(10, 3600, "5m", int), "Maximum wait for a shared GPU."] = 300
    planner: Annotated[
        str, choice((*PLANNERS, *LEARNED_PLANNERS)), "The planner that chooses co-runners."
    ] = "annealing"
    model: Annotated[
        Path | None, path("/var/lib/slurm-gpu/dqngpu.npz"), "The model file of a learned planner."
    ] = None
    why: Annotated[str, TEXT, REQUIRED, "The reason."] = ""


class IdleAction(StrEnum):
    """The action on a job that never used its GPUs."""

    CANCEL = "cancel"
    # Requeue the job, and hold it until its owner releases it.
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class CancelIdle:
    """The settings for ending jobs that never used a GPU."""

    after_s: Annotated[int, WALLTIME, "Idle time before jobs are ended."]
    warn_s: Annotated[
        tuple[Annotated[int, WALLTIME], ...],
        Items(least=1, most=5),
        Key("warn"),
        "Idle times before the warnings, ascending, below `after`.",
    ]
    groups: Annotated[GroupNames | None, Key("for"), "Groups whose jobs are ended; by default all."] = None
    exempt: Annotated[GroupNames, "Groups whose jobs are not ended."] = ()
    action: Annotated[IdleAction, "Cancel the job, or requeue and hold it."] = IdleAction.CANCEL
    mode: Annotated[Mode, _UNFITTED, "Only log, only warn, or end jobs."] = Mode.OBSERVE
    why: Annotated[str, TEXT, REQUIRED, "The reason."] = ""


@dataclass(frozen=True, slots=True)
class Manages:
    """The parts of slurmdbd that `policy apply` may change."""

    qos: Annotated[QosPatterns, "QOS, as patterns such as `sg-*`."] = ()
    accounts: Annotated[AccountPatterns, "Accounts."] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """A site's own job_submit.lua."""

    before: Annotated[Path | None, _SCRIPT, "Called before this policy."] = None
    after: Annotated[Path | None, _SCRIPT, "Called after this policy."] = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy; check.py checks its values, and names.py whether its names exist on this host."""

    version: Annotated[int, fixed(1), REQUIRED, "The version."] = 1
    contact: Annotated[str | None, TEXT, "Contact for questions, shown in refusals."] = None
    manages: Annotated[Manages, "The parts of slurmdbd that `policy apply` may change."] = field(
        default_factory=Manages
    )
    chain: Annotated[Chain, "A site's own job_submit.lua."] = field(default_factory=Chain)
    on_error: Annotated[OnError, "The decision if slurm-gpu itself fails."] = OnError.ALLOW
    mode: Annotated[Mode, _UNFITTED, "The default mode of rules."] = Mode.OBSERVE
    # A job belongs to the first bundle that matches it.
    bundles: Annotated[Mapping[Annotated[str, ID], Bundle], "CPUs and memory for a number of GPUs."] = field(
        default_factory=dict
    )
    owners: Annotated[
        tuple[GpuOwner, ...], Items(keyed=True), "Groups whose idle GPUs are lent until they need them."
    ] = ()
    # check.py adds the group of urgent jobs to `groups` and their rule to `rules`.
    urgent: Annotated[Urgent | None, "Jobs that start before all others."] = None
    colocation: Annotated[Colocation | None, "Jobs that share a GPU."] = None
    cancel_idle: Annotated[CancelIdle | None, "End jobs that never used a GPU."] = None
    groups: Annotated[Mapping[Annotated[str, ID], Group], "Jobs that match all given conditions."] = field(
        default_factory=dict
    )
    rules: Annotated[tuple[PolicyRule, ...], "All rules that match a job apply."] = ()
    exceptions: Annotated[tuple[RuleException, ...], "Other limits for a user or group."] = ()
