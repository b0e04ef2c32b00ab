"""Map limits of policy.yaml to fields of an association or a QOS (the table in docs/policy.md)."""

from __future__ import annotations

from enum import Enum

from slurm_gpu.policy.language.amounts import GpuLimit
from slurm_gpu.policy.language.limits import LimitKind, LimitUnit, LimitValue, Scope, steps_of
from slurm_gpu.policy.language.model import Per
from slurm_gpu.slurm.sacctmgr import LimitField


class LimitScope(Enum):
    """The kind of entity in Slurm on which a rule's limits are set."""

    ASSOCIATIONS = "associations"
    QOS = "QOS"


NOT_TRACKED = "slurm.conf does not track {tres}; add it to AccountingStorageTRES"

# (per, scope) → the fields for the sum of TRES, the running jobs, and the running and pending jobs.
_SUMS = {
    (Per.USER, LimitScope.ASSOCIATIONS): ("GrpTRES", "MaxJobs", "MaxSubmitJobs"),
    (Per.USER, LimitScope.QOS): ("MaxTRESPU", "MaxJobsPU", "MaxSubmitJobsPU"),
    (Per.ACCOUNT, LimitScope.ASSOCIATIONS): ("GrpTRES", "GrpJobs", "GrpSubmitJobs"),
    (Per.ACCOUNT, LimitScope.QOS): ("MaxTRESPA", "MaxJobsPA", "MaxSubmitJobsPA"),
    (Per.GROUP, LimitScope.ASSOCIATIONS): ("GrpTRES", "GrpJobs", "GrpSubmitJobs"),
    (Per.GROUP, LimitScope.QOS): ("GrpTRES", "GrpJobs", "GrpSubmitJobs"),
}

# Fields that users of an account inherit unless they have a value of their own.
INHERITED = frozenset({"MaxTRES", "MaxWall", "MaxJobs", "MaxSubmitJobs"})


def native_fields(kind: LimitKind, value: LimitValue, per: Per, place: LimitScope) -> dict[LimitField, int]:
    """Return the fields that enforce `value`, or the part that Slurm can enforce; {} if there are no fields.

    A field never allows less than the limit itself. A limit on TRES of running and pending jobs becomes a
    limit on running jobs. A limit that depends on the number of GPUs becomes its largest value. A limit of
    4.5 GPUs becomes 4, because Slurm counts whole GPUs.
    """
    if kind.lua_alone:
        return {}
    if steps := steps_of(value):
        if steps[0].from_mgpu > 0:
            return {}  # jobs with fewer GPUs have no limit
        value = max(step.limit for step in steps)
    if kind.measure is LimitUnit.WALLTIME:
        assert isinstance(value, int)
        return {LimitField("MaxWall"): -(-value // 60)}
    tres_field, running, total = ("MaxTRES", "", "") if kind.scope is Scope.JOB else _SUMS[per, place]
    if not kind.tres:  # a number of jobs
        assert isinstance(value, int)
        return {LimitField(total if kind.scope is Scope.TOTAL else running): value}
    if isinstance(value, GpuLimit):
        amounts = {} if value.all_mgpu is None else {kind.tres: value.all_mgpu // 1000}
        amounts |= {f"{kind.tres}:{type_}": mgpu // 1000 for type_, mgpu in value.by_type_mgpu.items()}
        return {LimitField(tres_field, tres): amount for tres, amount in amounts.items()}
    assert isinstance(value, int)
    return {LimitField(tres_field, kind.tres): value}
