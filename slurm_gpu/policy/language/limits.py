"""Define the limits of policy.yaml: key, unit, scope, and whether Slurm's own limits can enforce them.

The scope of a limit determines the check when the owner of a job runs `scontrol update`. An update that does
not raise the job's amount is accepted, unless the job becomes subject to a rule that did not apply before.

- JOB: the updated job is compared with the limit.
- TOTAL and PENDING: the updated job replaces the previous one in the sum over running and pending jobs, or
  over pending jobs alone.
- PERIOD: the resource-hours that the updated job may use (for example, GPUs × time limit) are added to those
  used so far; in a rule with `per: job`, they are compared alone.
- RUNNING: the updated job alone is compared with the limit; Slurm's own limits decide when the job starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from slurm_gpu.policy.language.amounts import GpuLimit, JobAmounts, LimitStep, LimitSteps
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Per, PolicyRule, RuleException, Tier

HasAmounts = TypeVar("HasAmounts", PolicyRule, Tier, RuleException)

# The prefix of the keys of minimums in the table for the Lua code.
AT_LEAST = "at_least:"


class LimitUnit(Enum):
    """The unit of a limit's value."""

    GPUS = "GPUs"
    COUNT = "count"
    MEMORY = "memory"
    WALLTIME = "walltime"
    NAMES = "names"
    HOURS = "hours"


class Scope(Enum):
    """The jobs over which a limit is summed."""

    JOB = "one job"
    TOTAL = "running and pending jobs"
    PENDING = "pending jobs"
    # The script refuses only a job that alone exceeds the limit; Slurm's own limits keep other jobs pending.
    RUNNING = "running jobs"
    PERIOD = "a period"


@dataclass(frozen=True, slots=True)
class LimitKind:
    """A limit that rules can set; `key` is its key in policy.yaml and in the table for the Lua code."""

    key: str
    measure: LimitUnit
    scope: Scope
    # The noun in messages: the plural, and the singular if it differs.
    what: str
    one: str = ""
    # The TRES in Slurm; "" for jobs, times and names.
    tres: str = ""
    # The limit on a sum that includes this amount, such as gpus_total for the GPUs of one job.
    part_of: str = ""
    # The reason why no field in Slurm can enforce this limit; "" if a field can.
    lua_alone: str = ""

    @property
    def field(self) -> str:
        """Return the name of the limit's field in `RuleLimits`."""
        return f"{self.key}_mib" if self.measure is LimitUnit.MEMORY else self.key

    def noun(self, number: float) -> str:
        """Return the noun in the singular or plural for a number, such as 1 job or 2 jobs."""
        return self.one if self.one and number == 1 else self.what

    def of(self, limits: JobAmounts) -> LimitValue:
        """Return the value of this limit in `limits`; None if it is not set."""
        value: LimitValue = getattr(limits, self.field, None)
        return value

    def allowed_per(self, per: Per) -> bool:
        """Return whether a rule with this `per:` may set the limit."""
        return self.scope is Scope.PERIOD or (self.scope is Scope.JOB) == (per is Per.JOB)


_WITH_RUNNING = "Slurm limits pending jobs only together with running ones"

LimitValue = GpuLimit | int | LimitSteps | tuple[str, ...] | Mapping[str | None, float] | None


_KINDS = (
    LimitKind("gpus", LimitUnit.GPUS, Scope.JOB, "GPUs", tres="gres/gpu", part_of="gpus_total"),
    LimitKind(
        "gpus_per_node",
        LimitUnit.COUNT,
        Scope.JOB,
        "GPUs per node",
        "GPU per node",
        lua_alone="Slurm's limit per node is compared with the mean over a job's nodes",
    ),
    LimitKind("nodes", LimitUnit.COUNT, Scope.JOB, "nodes", "node", tres="node"),
    LimitKind("cpus", LimitUnit.COUNT, Scope.JOB, "CPUs", "CPU", tres="cpu", part_of="cpus_total"),
    LimitKind("memory", LimitUnit.MEMORY, Scope.JOB, "memory", tres="mem", part_of="memory_total"),
    LimitKind(
        "cpus_per_gpu",
        LimitUnit.COUNT,
        Scope.JOB,
        "CPUs per GPU",
        "CPU per GPU",
        lua_alone="Slurm has no limit per GPU",
    ),
    LimitKind(
        "memory_per_gpu",
        LimitUnit.MEMORY,
        Scope.JOB,
        "memory per GPU",
        lua_alone="Slurm has no limit per GPU",
    ),
    LimitKind(
        "array_tasks",
        LimitUnit.COUNT,
        Scope.JOB,
        "array tasks",
        "array task",
        part_of="jobs_total",
        lua_alone="Slurm limits the size of arrays only for the whole cluster",
    ),
    LimitKind(
        "tasks",
        LimitUnit.COUNT,
        Scope.JOB,
        "MPI tasks",
        "MPI task",
        lua_alone="Slurm has no limit on MPI tasks",
    ),
    LimitKind("walltime", LimitUnit.WALLTIME, Scope.JOB, "time limit"),
    LimitKind(
        "partitions",
        LimitUnit.NAMES,
        Scope.JOB,
        "partitions",
        lua_alone="Slurm restricts partitions only in slurm.conf (AllowAccounts, AllowQos)",
    ),
    LimitKind(
        "gpu_types",
        LimitUnit.NAMES,
        Scope.JOB,
        "GPU types",
        lua_alone="Slurm's limits by GPU type ignore jobs that do not name a type",
    ),
    LimitKind(
        "qos",
        LimitUnit.NAMES,
        Scope.JOB,
        "QOS",
        lua_alone="Slurm restricts QOS only by the lists of associations and partitions",
    ),
    LimitKind("gpus_total", LimitUnit.GPUS, Scope.TOTAL, "GPUs", tres="gres/gpu"),
    LimitKind("gpus_running", LimitUnit.GPUS, Scope.RUNNING, "GPUs", tres="gres/gpu", part_of="gpus_total"),
    LimitKind(
        "gpus_pending",
        LimitUnit.GPUS,
        Scope.PENDING,
        "GPUs",
        part_of="gpus_total",
        lua_alone=_WITH_RUNNING,
    ),
    LimitKind(
        "jobs_pending",
        LimitUnit.COUNT,
        Scope.PENDING,
        "jobs",
        "job",
        part_of="jobs_total",
        lua_alone=_WITH_RUNNING,
    ),
    LimitKind("jobs_total", LimitUnit.COUNT, Scope.TOTAL, "jobs", "job"),
    LimitKind("jobs_running", LimitUnit.COUNT, Scope.RUNNING, "jobs", "job", part_of="jobs_total"),
    LimitKind("cpus_total", LimitUnit.COUNT, Scope.TOTAL, "CPUs", "CPU", tres="cpu"),
    LimitKind(
        "cpus_running", LimitUnit.COUNT, Scope.RUNNING, "CPUs", "CPU", tres="cpu", part_of="cpus_total"
    ),
    LimitKind("memory_total", LimitUnit.MEMORY, Scope.TOTAL, "memory", tres="mem"),
    LimitKind(
        "memory_running", LimitUnit.MEMORY, Scope.RUNNING, "memory", tres="mem", part_of="memory_total"
    ),
    LimitKind("nodes_running", LimitUnit.COUNT, Scope.RUNNING, "nodes", "node", tres="node"),
    LimitKind(
        "gpu_hours",
        LimitUnit.HOURS,
        Scope.PERIOD,
        "GPU-hours",
        "GPU-hour",
        lua_alone="Slurm's limits on GPU minutes do not restart each week, and shorten jobs without --time",
    ),
    LimitKind(
        "cpu_hours",
        LimitUnit.HOURS,
        Scope.PERIOD,
        "CPU-hours",
        "CPU-hour",
        lua_alone="Slurm's limits on CPU minutes do not restart each week, and shorten jobs without --time",
    ),
    LimitKind(
        "billing_hours",
        LimitUnit.HOURS,
        Scope.PERIOD,
        "billing-hours",
        "billing-hour",
        lua_alone="Slurm's limits on billing minutes do not restart each week",
    ),
)

# In display order.
LIMITS: Mapping[str, LimitKind] = MappingProxyType({kind.key: kind for kind in _KINDS})


def set_limits(limits: JobAmounts) -> Iterator[tuple[LimitKind, LimitValue]]:
    """Yield each limit that is set, with its value, in the order of `LIMITS`."""
    for kind in _KINDS:
        value = kind.of(limits)
        if value is not None:
            yield kind, value


def flat_limits(limits: JobAmounts) -> dict[str, Plain]:
    """Return the limits as the Lua code reads them, with one value per key.

    `gpus:a100` is the limit of one type in mgpu, `gpu_hours` the limit of one job in hours, `gpu_hours:week`
    the limit of one week, and `gpu_hours:week:a100` that of one week and type. A limit that depends on the
    GPUs of the job is a list of {mgpu, limit}. Names are {name: true}, memory is in MiB, walltime in seconds.
    """
    flat: dict[str, Plain] = {}
    for kind, value in set_limits(limits):
        if isinstance(value, GpuLimit):
            if value.all_mgpu is not None:
                flat[kind.key] = value.all_mgpu
            flat |= {f"{kind.key}:{gpu_type}": mgpu for gpu_type, mgpu in value.by_type_mgpu.items()}
        elif isinstance(value, Mapping):
            flat |= {f"{kind.key}:{part}" if part else kind.key: hours for part, hours in value.items()}
        elif isinstance(value, tuple):
            flat[kind.key] = _flat_tuple(value)
        else:
            flat[kind.key] = value
    return flat


def flat_amounts(of: PolicyRule | Tier | RuleException) -> dict[str, Plain]:
    """Return the limits of a rule, tier or exception by key, and its minimums as `at_least:KEY`."""
    minimums = flat_limits(of.at_least)
    return flat_limits(of.limits) | {f"{AT_LEAST}{key}": value for key, value in minimums.items()}


def is_empty(of: PolicyRule | Tier) -> bool:
    """Return whether a rule or tier allows everything and changes no job."""
    changes = isinstance(of, PolicyRule) and (of.set is not None or of.defaults is not None)
    return not (flat_amounts(of) or of.options or changes)


def with_exact(of: HasAmounts) -> HasAmounts:
    """Return a rule, tier or exception in which each exact amount is both a limit and a minimum."""
    both: dict[str, Any] = {kind.field: value for kind, value in set_limits(of.exactly)}
    limits, at_least = replace(of.limits, **both), replace(of.at_least, **both)
    return replace(of, limits=limits, at_least=at_least, exactly=JobAmounts())


def steps_of(value: LimitValue) -> list[LimitStep]:
    """Return the steps of a limit that may depend on the GPUs of the job; [] for other limits."""
    return [item for item in value if isinstance(item, LimitStep)] if isinstance(value, tuple) else []


def number_of(value: LimitValue) -> int | None:
    """Return a limit that is one number for every job; None for other limits."""
    steps = steps_of(value)
    if len(steps) == 1 and steps[0].from_mgpu == 0:
        return steps[0].limit
    return value if isinstance(value, int) else None


def _flat_tuple(value: LimitSteps | tuple[str, ...]) -> Plain:
    number = number_of(value)
    if number is not None:
        return number
    steps: list[Plain] = [{"mgpu": step.from_mgpu, "limit": step.limit} for step in steps_of(value)]
    return steps or dict.fromkeys(sorted(item for item in value if isinstance(item, str)), True)
