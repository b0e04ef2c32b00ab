"""Find limits in slurmdbd that a job exceeds by itself, whether slurm-gpu or an operator set them.

The limits of the partition's QOS take precedence over those of the job's QOS, unless the job's QOS has the
flag OverPartQOS. The limits of both QOS take precedence over those of associations. Limits on each job are
inherited from parent accounts; limits on all jobs of an account (Grp…) apply at each level. Slurm multiplies
TRES limits of associations by the LimitFactor of the first QOS that sets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.policy.explain.requested_amounts import requested_amounts, set_number
from slurm_gpu.slurm.sacctmgr import DENY_ON_LIMIT, Association, LimitField, Qos
from slurm_gpu.text.hostlist import count_tasks

_TRES = {"gpus": "gres/gpu", "nodes": "node", "cores": "cpu", "memory_mib": "mem"}
_SUBMITTED = ("MaxSubmitJobs", "MaxSubmitJobsPA", "GrpSubmitJobs")
_RUNNING = ("MaxJobs", "MaxJobsPA", "GrpJobs")
# Field of an association → field of a QOS, where the names differ.
_OF_QOS = {"MaxSubmitJobs": "MaxSubmitJobsPU", "MaxJobs": "MaxJobsPU"}
_BRACKETS = str.maketrans("", "", "[] ")
_OVER_PARTITION = LimitField("Flags", "OverPartQOS")
_DENY = LimitField("Flags", DENY_ON_LIMIT)


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A limit that is lower than the amount that a job requests."""

    text: str
    # Whether Slurm refuses the job at submission; otherwise, the job waits.
    refuses: bool


def ordered_qos(of_partition: Qos | None, of_job: Qos) -> list[Qos]:
    """Return the QOS of a partition and of a job in order of precedence."""
    if of_partition is None or of_partition == of_job:
        return [of_job]
    return [of_job, of_partition] if _OVER_PARTITION in of_job.limits else [of_partition, of_job]


def exceeded_limits(
    description: Mapping[str, object], qos: Sequence[Qos], associations: Sequence[Association]
) -> Iterator[ExceededLimit]:
    """Yield each limit that the job exceeds.

    `associations` are those of the user in the job's account, of that account, and of its parents.
    """
    is_strict = any(_DENY in one.limits for one in qos)
    factor = next((one.limit_factor for one in qos if one.limit_factor is not None), 0)
    for limit, amount in _requested(description).items():
        in_qos = LimitField(_OF_QOS.get(limit.name, limit.name), limit.item)
        of_qos = [(one, in_qos) for one in qos if in_qos in one.limits]
        of_associations = [(one, limit) for one in associations if limit in one.limits]
        holders = of_qos[:1] or (of_associations if limit.name.startswith("Grp") else of_associations[:1])
        refuses = limit.name in _SUBMITTED or (is_strict and limit.name not in _RUNNING)
        for holder, field in holders:
            value = holder.limits[field]
            shown = field.show(value)
            if factor > 0 and isinstance(holder, Association) and "TRES" in field.name:
                value, shown = int(value * factor), f"{shown} times LimitFactor={factor:g}"
            if amount > value:
                requested = f"the job requests {field.amount(amount)}"
                yield ExceededLimit(f"the limit of {holder.entity} is {shown}, and {requested}", refuses)


def _requested(description: Mapping[str, object]) -> dict[LimitField, int]:
    """Return the amount that the job alone adds to each limit, by the field of associations."""
    amounts = requested_amounts(description)
    requested = {
        LimitField(field, tres): amount
        for field in ("MaxTRES", "MaxTRESPU", "MaxTRESPA", "GrpTRES")
        for name, tres in _TRES.items()
        if (amount := amounts[name])
    }
    array = description.get("array_inx")
    tasks = count_tasks(array.translate(_BRACKETS)) if isinstance(array, str) else 1
    requested |= {LimitField(name): tasks for name in _SUBMITTED}
    requested |= {LimitField(name): 1 for name in _RUNNING}
    if minutes := set_number(description, "time_limit"):
        requested[LimitField("MaxWall")] = minutes
    return requested
