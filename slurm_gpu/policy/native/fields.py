"""Which limit of policy.yaml becomes which field of an association or a QOS (the table in docs/policy.md)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slurm_gpu.policy.language.limits import LimitKind, LimitUnit, LimitValue, Scope
from slurm_gpu.policy.language.model import GpuLimit, Per, WalltimeStep
from slurm_gpu.slurm.sacctmgr import LimitField


class LimitScope(Enum):
    """On what a rule's limits hang."""

    ASSOCIATIONS = "associations"
    QOS = "QOS"


LUA_ALONE: Mapping[str, str] = {
    "array_tasks": "Slurm limits the size of arrays for the whole cluster only",
    "tasks": "Slurm knows no limit on MPI tasks",
    "cpus_per_gpu": "Slurm knows no limit per GPU",
    "memory_per_gpu": "Slurm knows no limit per GPU",
    "partitions": "Slurm allows partitions in slurm.conf (AllowAccounts, AllowQos)",
    "gpu_types": "Slurm does not hold jobs that name no type to a limit by type",
    "gpu_hours": "Slurm's own count of GPU minutes never begins anew with a week or a month",
}
"""Key → why no field of Slurm's can hold it."""

NOT_TRACKED = "slurm.conf does not track {tres}; add it to AccountingStorageTRES"

_TRES = {"gpus": "gres/gpu", "cpus": "cpu", "memory": "mem", "nodes": "node"}

# (per, place) → the field for sums of TRES, of running jobs, of running and pending jobs.
_SUMS = {
    (Per.USER, LimitScope.ASSOCIATIONS): ("GrpTRES", "MaxJobs", "MaxSubmitJobs"),
    (Per.USER, LimitScope.QOS): ("MaxTRESPU", "MaxJobsPU", "MaxSubmitJobsPU"),
    (Per.GROUP, LimitScope.ASSOCIATIONS): ("GrpTRES", "GrpJobs", "GrpSubmitJobs"),
    (Per.GROUP, LimitScope.QOS): ("GrpTRES", "GrpJobs", "GrpSubmitJobs"),
}

INHERITED = frozenset({"MaxTRES", "MaxWall", "MaxJobs", "MaxSubmitJobs"})
"""Fields that an account hands on to each of its users who has none of their own."""


def native_fields(kind: LimitKind, value: LimitValue, per: Per, place: LimitScope) -> dict[LimitField, int]:
    """Fields that hold `value`, or as much of it as Slurm can; {} where there is none.

    None of them is ever tighter than the limit itself: a sum over running and pending jobs bounds the running
    ones, the longest of the walltimes by GPUs bounds all jobs, and of 4.5 GPUs, 4 whole ones fit.
    """
    if kind.key in LUA_ALONE:
        return {}
    if kind.measure is LimitUnit.WALLTIME:
        return _walltime(value)
    what, _, _ = kind.key.partition("_")
    tres_field, running, total = ("MaxTRES", "", "") if kind.scope is Scope.JOB else _SUMS[per, place]
    if what == "jobs":
        assert isinstance(value, int)
        return {LimitField(total if kind.scope is Scope.TOTAL else running): value}
    if isinstance(value, GpuLimit):
        amounts = {} if value.all_mgpu is None else {"gres/gpu": value.all_mgpu // 1000}
        amounts |= {f"gres/gpu:{kind_}": mgpu // 1000 for kind_, mgpu in value.by_type_mgpu.items()}
        return {LimitField(tres_field, tres): amount for tres, amount in amounts.items()}
    assert isinstance(value, int)
    return {LimitField(tres_field, _TRES[what]): value}


def _walltime(value: LimitValue) -> dict[LimitField, int]:
    assert isinstance(value, tuple)
    steps = [step for step in value if isinstance(step, WalltimeStep)]
    if not steps or steps[0].from_mgpu > 0:
        return {}  # jobs with fewer GPUs have no limit
    longest_s = max(step.limit_s for step in steps)
    return {LimitField("MaxWall"): -(-longest_s // 60)}
