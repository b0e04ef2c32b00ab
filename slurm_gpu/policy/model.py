"""What policy.yaml says, typed (docs/contracts.md, section 3). GPUs are thousandths (mgpu), times seconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slurm_gpu.yamlsource import Location


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


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds; None where the rule sets none. 0 lets nothing through."""

    gpus_mgpu: int | None = None
    """GPUs of one job."""
    gpus_total_mgpu: int | None = None
    """GPUs of running and pending jobs together."""
    jobs_total: int | None = None
    """Running and pending jobs; each task of an array is one."""
    walltime_s: int | None = None
    """Time limit of one job."""


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
    limits: Limits
    until: dt.date
    why: str
    granted_by: str | None
    location: Location


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule with its reason."""

    id: str
    group: str
    per: Per
    why: str
    limits: Limits
    mode: Mode
    on_error: OnError


@dataclass(frozen=True, slots=True)
class Manages:
    """What the native backstop may write to; kept for it, since nothing else uses it."""

    qos: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy, checked in itself; whether its names exist here is another question (names.py)."""

    contact: str | None = None
    manages: Manages = field(default_factory=Manages)
    on_error: OnError = OnError.ALLOW
    groups: Mapping[str, Group] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    exceptions: tuple[RuleException, ...] = ()
