"""Why a job waits, in plain words: squeue's reason codes (its manual page, "JOB REASON CODES")."""

from __future__ import annotations

_MEANINGS = {
    "Resources": "next in line; nothing that fits is free",
    "Priority": "others come first",
    "None": "Slurm has not looked yet",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "waits for a job that failed: it never starts",
    "BeginTime": "is not to begin yet",
    "JobHeldUser": "held by its user",
    "JobHeldAdmin": "held by an operator",
    "launch failed requeued held": "could not be started and is held",
    "JobArrayTaskLimit": "its array runs as many tasks as it may",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "its reservation is gone: it never starts",
    "Licenses": "waits for a licence",
    "PartitionDown": "its partition takes no jobs now",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionNodeLimit": "more nodes than its partition allows",
    "PartitionTimeLimit": "longer than its partition allows",
    "ReqNodeNotAvail": "nodes that it needs are out of service or reserved",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "Prolog": "its nodes are being made ready",
    "Cleaning": "its last run is being cleaned up",
}
_SPELT_OUT = ("Nodes required for job", "Nodes_required_for_job")
_NODES_RESERVED = "ReqNodeNotAvail"
"""What slurmctld also says in a whole sentence."""
_LIMITS = (
    ("QOSMax", "PerUser", "a limit on each user in its QOS"),
    ("QOSMax", "PerAccount", "a limit on each account in its QOS"),
    ("QOSMax", "PerJob", "larger than its QOS allows, as it would be placed now"),
    ("QOSMax", "", "a limit of its QOS"),
    ("QOSGrp", "", "all jobs of its QOS together are at its limit"),
    ("QOSMin", "", "smaller than its QOS allows: it never starts"),
    ("QOS", "", "a limit of its QOS"),
    ("AssocGrp", "", "its account is at its limit"),
    ("AssocMax", "PerJob", "larger than its account allows, as it would be placed now"),
    ("Assoc", "", "a limit of its account"),
    ("MaxGRESPerAccount", "", "its account is at its limit"),
)
"""Beginning and end of reasons that are limits: the first that fits counts."""


def short(reason: str) -> str:
    """Slurm's word without what it adds, such as the names of nodes."""
    word = reason.partition(",")[0].strip()
    return _NODES_RESERVED if word.startswith(_SPELT_OUT) else word


def meaning(reason: str) -> str | None:
    """What a reason says; None of one that is not known here."""
    word = short(reason)
    if (told := _MEANINGS.get(word)) is not None:
        return told
    return next((text for begin, end, text in _LIMITS if word.startswith(begin) and word.endswith(end)), None)
