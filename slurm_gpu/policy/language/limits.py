"""Every limit that policy.yaml knows: its key, what it measures, and where it may stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import GpuLimit, Per, RuleLimits, WalltimeStep


class LimitUnit(Enum):
    """What a limit's value is."""

    GPUS = "GPUs"
    COUNT = "count"
    MEMORY = "memory"
    WALLTIME = "walltime"
    NAMES = "names"
    GPU_HOURS = "GPU-hours"


class Scope(Enum):
    """Over what a limit's value is taken."""

    JOB = "one job"
    TOTAL = "running and pending jobs"
    RUNNING = "running jobs"
    """Cannot be refused at submission, since the job may wait: Slurm's own limits hold it back."""
    PERIOD = "a period of the calendar"


@dataclass(frozen=True, slots=True)
class LimitKind:
    """One limit of the format."""

    key: str
    """In policy.yaml, and in the table that the Lua reads."""
    measure: LimitUnit
    scope: Scope
    what: str
    """For people: what it is a number of."""
    one: str = ""
    """The same of one; where it is given, it differs."""

    @property
    def field(self) -> str:
        """Its name in `Limits`."""
        return f"{self.key}_mib" if self.measure is LimitUnit.MEMORY else self.key

    def noun(self, number: float) -> str:
        """What it is so many of: 1 job, 2 jobs."""
        return self.one if self.one and number == 1 else self.what

    def of(self, limits: RuleLimits) -> LimitValue:
        """Its value there; None where it is not limited."""
        value: LimitValue = getattr(limits, self.field)
        return value

    def allowed_per(self, per: Per) -> bool:
        """Whether it can stand in a rule with this `per:`."""
        return (self.scope is Scope.JOB) == (per is Per.JOB)


LimitValue = GpuLimit | int | tuple[WalltimeStep, ...] | tuple[str, ...] | Mapping[str, float] | None

_KINDS = (
    LimitKind("gpus", LimitUnit.GPUS, Scope.JOB, "GPUs"),
    LimitKind("nodes", LimitUnit.COUNT, Scope.JOB, "nodes", "node"),
    LimitKind("cpus", LimitUnit.COUNT, Scope.JOB, "CPUs", "CPU"),
    LimitKind("memory", LimitUnit.MEMORY, Scope.JOB, "memory"),
    LimitKind("cpus_per_gpu", LimitUnit.COUNT, Scope.JOB, "CPUs per GPU", "CPU per GPU"),
    LimitKind("memory_per_gpu", LimitUnit.MEMORY, Scope.JOB, "memory per GPU"),
    LimitKind("array_tasks", LimitUnit.COUNT, Scope.JOB, "tasks of an array", "task of an array"),
    LimitKind("tasks", LimitUnit.COUNT, Scope.JOB, "MPI tasks", "MPI task"),
    LimitKind("walltime", LimitUnit.WALLTIME, Scope.JOB, "time limit"),
    LimitKind("partitions", LimitUnit.NAMES, Scope.JOB, "partitions"),
    LimitKind("gpu_types", LimitUnit.NAMES, Scope.JOB, "GPU types"),
    LimitKind("gpus_total", LimitUnit.GPUS, Scope.TOTAL, "GPUs"),
    LimitKind("gpus_running", LimitUnit.GPUS, Scope.RUNNING, "GPUs"),
    LimitKind("jobs_total", LimitUnit.COUNT, Scope.TOTAL, "jobs", "job"),
    LimitKind("jobs_running", LimitUnit.COUNT, Scope.RUNNING, "jobs", "job"),
    LimitKind("cpus_total", LimitUnit.COUNT, Scope.TOTAL, "CPUs", "CPU"),
    LimitKind("cpus_running", LimitUnit.COUNT, Scope.RUNNING, "CPUs", "CPU"),
    LimitKind("memory_total", LimitUnit.MEMORY, Scope.TOTAL, "memory"),
    LimitKind("memory_running", LimitUnit.MEMORY, Scope.RUNNING, "memory"),
    LimitKind("nodes_running", LimitUnit.COUNT, Scope.RUNNING, "nodes", "node"),
    LimitKind("gpu_hours", LimitUnit.GPU_HOURS, Scope.PERIOD, "GPU-hours", "GPU-hour"),
)

LIMITS: Mapping[str, LimitKind] = MappingProxyType({kind.key: kind for kind in _KINDS})
"""Key → limit, in the order in which people read them."""


def set_limits(limits: RuleLimits) -> Iterator[tuple[LimitKind, LimitValue]]:
    """Those limits that are set, with their values, in the order of `LIMITS`."""
    for kind in _KINDS:
        value = kind.of(limits)
        if value is not None:
            yield kind, value


def flat_limits(limits: RuleLimits) -> dict[str, Plain]:
    """Limits as the Lua reads them, one value each.

    `gpus:a100` is the limit of one type in mgpu, `gpu_hours:week` that of one period in hours, walltime a
    number of seconds or a list of {mgpu, s}, and allowed names are {name: true}; memory is in MiB.
    """
    flat: dict[str, Plain] = {}
    for kind, value in set_limits(limits):
        if isinstance(value, GpuLimit):
            if value.all_mgpu is not None:
                flat[kind.key] = value.all_mgpu
            flat |= {f"{kind.key}:{gpu_type}": mgpu for gpu_type, mgpu in value.by_type_mgpu.items()}
        elif isinstance(value, Mapping):
            flat |= {f"{kind.key}:{period}": hours for period, hours in value.items()}
        elif isinstance(value, tuple):
            flat[kind.key] = _listed(value)
        else:
            flat[kind.key] = value
    return flat


def _listed(value: tuple[WalltimeStep, ...] | tuple[str, ...]) -> Plain:
    steps = [item for item in value if isinstance(item, WalltimeStep)]
    if not steps:
        return dict.fromkeys(sorted(item for item in value if isinstance(item, str)), True)
    if len(steps) == 1 and steps[0].from_mgpu == 0:
        return steps[0].limit_s
    return [{"mgpu": step.from_mgpu, "s": step.limit_s} for step in steps]
