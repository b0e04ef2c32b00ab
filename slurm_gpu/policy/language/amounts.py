"""Define the amounts that a rule can limit or require, as in policy.yaml.

Numbers of GPUs are in thousandths (mgpu), times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from slurm_gpu.config.decoder import Items, OneOrTable
from slurm_gpu.policy.language.value_types import (
    BILLING_HOURS,
    COUNT,
    CPU_HOURS,
    GPU_HOURS,
    GPU_TYPE,
    GPU_TYPE_NAME,
    GPUS,
    GPUS_FROM,
    MEMORY,
    MEMORY_PER_GPU,
    PARTITION,
    PERIOD,
    QOS,
    WALLTIME,
)

_NAMES = Items(least=1)
PartitionNames = Annotated[tuple[Annotated[str, PARTITION], ...], _NAMES]
GpuTypeNames = Annotated[tuple[Annotated[str, GPU_TYPE_NAME], ...], _NAMES]


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """A limit on GPUs of all types together, or on GPUs of each named type; exactly one is set."""

    all_mgpu: int | None = None
    # GPU type in lower case → mgpu.
    by_type_mgpu: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitStep:
    """The limit for jobs with at least this many GPUs and fewer than the next step."""

    from_mgpu: int
    limit: int


def _gpu_limit(found: Mapping[str | None, int]) -> GpuLimit:
    return GpuLimit(found[None]) if None in found else GpuLimit(by_type_mgpu=found)  # type: ignore[arg-type]


def _limit_steps(found: Mapping[int | None, int]) -> tuple[LimitStep, ...]:
    return tuple(LimitStep(mgpu or 0, found[mgpu]) for mgpu in sorted(found, key=lambda mgpu: mgpu or 0))


def _hours_by_part(found: Mapping[str | None, Mapping[str | None, float]]) -> dict[str | None, float]:
    """Return the limits by period, or by period and GPU type, such as `month:a100`."""
    return {
        period if gpu_type is None else f"{period}:{gpu_type}": hours
        for period, by_type in found.items()
        for gpu_type, hours in by_type.items()
    }


_GpuLimit = Annotated[GpuLimit | None, OneOrTable(GPUS, GPU_TYPE, _gpu_limit)]
# Ascending by GPUs; jobs with fewer GPUs than the first step have no limit.
LimitSteps = tuple[LimitStep, ...]
_Count = Annotated[LimitSteps | None, OneOrTable(COUNT, GPUS_FROM, _limit_steps)]
_Memory = Annotated[LimitSteps | None, OneOrTable(MEMORY, GPUS_FROM, _limit_steps)]
_MemoryPerGpu = Annotated[LimitSteps | None, OneOrTable(MEMORY_PER_GPU, GPUS_FROM, _limit_steps)]
_Walltime = Annotated[LimitSteps | None, OneOrTable(WALLTIME, GPUS_FROM, _limit_steps)]


@dataclass(frozen=True, slots=True)
class JobAmounts:
    """Amounts of one job that a rule can require or limit; None means that the rule sets no amount."""

    gpus: Annotated[_GpuLimit, "GPUs of one job."] = None
    gpus_per_node: Annotated[_Count, "GPUs on one node."] = None
    nodes: Annotated[_Count, "Nodes of one job."] = None
    cpus: Annotated[_Count, "CPUs of one job."] = None
    memory_mib: Annotated[_Memory, "Memory of one job."] = None
    cpus_per_gpu: Annotated[_Count, "CPUs per GPU of one job."] = None
    memory_per_gpu_mib: Annotated[_MemoryPerGpu, "Memory per GPU of one job."] = None
    tasks: Annotated[_Count, "MPI tasks (--ntasks) of one job."] = None
    walltime: Annotated[_Walltime, "Time limit of one job."] = None


@dataclass(frozen=True, slots=True)
class RuleLimits(JobAmounts):
    """The limits of a rule; None means that the rule does not set the limit, and 0 allows nothing.

    Limits up to `qos` apply to one job, most others to sums over the jobs of a user, an account or a group.
    The module limits.py lists all limits by key.
    """

    array_tasks: Annotated[_Count, "Tasks of one job array."] = None
    partitions: Annotated[PartitionNames | None, "Partitions that jobs may use."] = None
    gpu_types: Annotated[GpuTypeNames | None, "GPU types that jobs may use."] = None
    qos: Annotated[tuple[Annotated[str, QOS], ...] | None, _NAMES, "QOS that jobs may use."] = None

    gpus_total: Annotated[_GpuLimit, "GPUs of running and pending jobs."] = None
    gpus_running: Annotated[_GpuLimit, "GPUs of running jobs, limited by Slurm."] = None
    gpus_pending: Annotated[_GpuLimit, "GPUs of pending jobs."] = None
    jobs_pending: Annotated[int | None, COUNT, "Pending jobs, counting each array task."] = None
    jobs_total: Annotated[int | None, COUNT, "Running and pending jobs, counting each array task."] = None
    jobs_running: Annotated[int | None, COUNT, "Running jobs, limited by Slurm."] = None
    cpus_total: Annotated[int | None, COUNT, "CPUs of running and pending jobs."] = None
    cpus_running: Annotated[int | None, COUNT, "CPUs of running jobs, limited by Slurm."] = None
    memory_total_mib: Annotated[int | None, MEMORY, "Memory of running and pending jobs."] = None
    memory_running_mib: Annotated[int | None, MEMORY, "Memory of running jobs, limited by Slurm."] = None
    nodes_running: Annotated[int | None, COUNT, "Nodes of running jobs, limited by Slurm."] = None
    # The keys are periods (periods.py), or period and GPU type, such as `month:a100`; the key of the limit on
    # one job is None.
    gpu_hours: Annotated[
        Mapping[str | None, float] | None,
        OneOrTable(GPU_HOURS, PERIOD, _hours_by_part, inner=OneOrTable(GPU_HOURS, GPU_TYPE, dict)),
        "GPUs × time limit of one job; with a period, plus the GPU-hours used in that period.",
    ] = None
    cpu_hours: Annotated[
        Mapping[str | None, float] | None,
        OneOrTable(CPU_HOURS, PERIOD, dict),
        "The same for CPUs.",
    ] = None
    billing_hours: Annotated[
        Mapping[str | None, float] | None,
        OneOrTable(BILLING_HOURS, PERIOD, dict),
        "The same for Slurm's billing units.",
    ] = None
