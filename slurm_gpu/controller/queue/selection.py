"""Find the jobs that a rule counts if it applies only to some jobs of its group (pure functions)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from slurm_gpu.controller.queue.amounts import (
    Amounts,
    CountingFacts,
    amounts_of,
    asked_gpus,
    least_amounts_of,
    limit_of,
)
from slurm_gpu.policy.language.membership import is_among
from slurm_gpu.policy.lua.installed import RuleInForce
from slurm_gpu.slurm.queue import CountedJob, JobPhase

_INTERACTIVE = re.compile(r"slurm-gpu/1 t=[0-9A-Za-z]+ k=i")

# The number of characters of a name that job_submit.lua compares with wildcards.
_COMPARED = 255


def submitted_as(job: CountedJob) -> str:
    """Return `interactive` or `batch`, as recorded by job_submit.lua at submission."""
    return "interactive" if _INTERACTIVE.search(job.admin_comment) else "batch"


def selects(rule: RuleInForce, job: CountedJob, facts: CountingFacts) -> bool:
    """Return whether a job has the kind of a rule, and may meet its conditions (`jobs:`)."""
    if rule.kind is not None and submitted_as(job) != rule.kind:
        return False
    return rule.jobs is None or _may_meet(rule.jobs, job, facts)


def _may_meet(conditions: Mapping[str, Any], job: CountedJob, facts: CountingFacts) -> bool:
    names, types, array = (conditions.get(key) for key in ("names", "gpu_types", "array"))
    if array is not None and array != job.is_array:
        return False
    if names and not is_among(job.name[:_COMPARED], tuple(names)):
        return False
    most, least = amounts_of(job, facts), least_amounts_of(job, facts)
    if types and not (most.mgpu and _may_have(types, job, most, facts)):
        return False
    limit_s = limit_of(job, facts)
    largest = {"mgpu": most.mgpu, "nodes": most.nodes, "walltime_s": limit_s}
    smallest = {"mgpu": least.mgpu, "nodes": least.nodes, "walltime_s": limit_s}
    return all(largest[key] >= value for key, value in (conditions.get("at_least") or {}).items()) and all(
        smallest[key] <= value for key, value in (conditions.get("at_most") or {}).items()
    )


def _may_have(types: Collection[str], job: CountedJob, amounts: Amounts, facts: CountingFacts) -> bool:
    """Return whether a job may have GPUs of one of these types; without a type, any in its partitions."""
    if job.phase is JobPhase.RUNNING and amounts.mgpu_by_type:
        return any(kind in types for kind in amounts.mgpu_by_type)
    asked = asked_gpus(job)
    if any(kind in types for kind in asked if kind is not None):
        return True
    if asked and None not in asked:
        return False
    found = [facts.partition_types.get(name) for name in job.partition.split(",")]
    return any(kinds is None or not kinds.isdisjoint(types) for kinds in found)
