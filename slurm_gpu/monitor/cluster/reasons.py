"""Explain squeue's reason codes. Source: "JOB REASON CODES" in the manual page of squeue."""

from __future__ import annotations

_MEANINGS = {
    "Resources": "next in line; nothing suitable is free",
    "Priority": "other jobs have a higher priority",
    "None": "Slurm has not considered it yet",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "never starts, since it waits for a job that failed",
    "BeginTime": "its begin time is in the future",
    "JobHeldUser": "held by its user",
    "JobHeldAdmin": "held by an operator",
    "launch failed requeued held": "failed to launch and is held",
    "JobArrayTaskLimit": "its array runs its maximum number of tasks",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "never starts, since its reservation was deleted",
    "Licenses": "waits for a licence",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "requests more nodes than its partition allows",
    "PartitionTimeLimit": "requests more time than its partition allows",
    "ReqNodeNotAvail": "nodes that it needs are out of service or reserved",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has the requested features",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "Prolog": "the prolog is preparing its nodes",
    "Cleaning": "its last run is being cleaned up",
}
_SPELT_OUT = ("Nodes required for job", "Nodes_required_for_job")
# slurmctld writes this reason as a sentence.
_NODES_RESERVED = "ReqNodeNotAvail"
# Reasons that name a limit, by their beginning and end; the first match applies.
_LIMITS = (
    ("QOSMax", "PerUser", "would exceed a limit per user of its QOS, alone or with other jobs"),
    ("QOSMax", "PerJob", "larger than its QOS allows on the nodes that Slurm tried"),
    ("QOSMax", "", "limited by its QOS"),
    ("QOSGrp", "", "would exceed a limit of its QOS, alone or with other jobs"),
    ("QOSMin", "", "never starts, since it is smaller than its QOS allows"),
    ("QOS", "", "limited by its QOS"),
    ("AssocGrp", "", "would exceed a limit of its account, alone or with other jobs"),
    ("AssocMax", "PerJob", "larger than its account allows on the nodes that Slurm tried"),
    ("Assoc", "", "limited by its account"),
    ("Max", "PerAccount", "would exceed a limit per account of its QOS, alone or with other jobs"),
)


def short(reason: str) -> str:
    """Return Slurm's code without additions such as node names."""
    word = reason.partition(",")[0].strip()
    return _NODES_RESERVED if word.startswith(_SPELT_OUT) else word


def meaning(reason: str) -> str | None:
    """Return an explanation of a reason; None if it is unknown."""
    word = short(reason)
    if (text := _MEANINGS.get(word)) is not None:
        return text
    return next((text for begin, end, text in _LIMITS if word.startswith(begin) and word.endswith(end)), None)
