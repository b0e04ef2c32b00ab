"""Whether slurm.conf lets lent GPUs come back, and in what time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slurm_gpu.policy.model import Owner
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.units import format_duration

_SCHED_INTERVAL_S = 60
"""Slurm's default; a long queue is looked through once in it."""
_CLEAN_UP_S = 30
"""Allowed for the epilog, and for Slurm to start the next job."""


class Lack(NamedTuple):
    """Something that lending needs of slurm.conf."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


def return_time_s(settings: SlurmSettings) -> int:
    """The longest that it may take from an owner's submission until what was lent has come back.

    Slurm sees that it must preempt, signals the job, kills what is left after KillWait, and cleans up.
    """
    raw = settings.raw
    interval = re.search(r"\bsched_interval=(\d+)", raw.get("SchedulerParameters", ""))
    wait = re.match(r"\d+", raw.get("KillWait", ""))
    interval_s = int(interval[1]) if interval else _SCHED_INTERVAL_S
    return interval_s + (int(wait[0]) if wait else 30) + _CLEAN_UP_S


def lacks(settings: SlurmSettings, owners: Iterable[Owner]) -> Iterator[Lack]:
    """What slurm.conf lacks for these owners; nothing where there are none."""
    owners = tuple(owners)
    if not owners:
        return
    raw = settings.raw
    if raw.get("PreemptType", "").lower() != "preempt/qos":
        yield Lack(
            "slurm.conf lacks PreemptType=preempt/qos: what is lent does not come back",
            "PreemptType=preempt/qos and PreemptMode=REQUEUE in slurm.conf; restart slurmctld",
        )
    elif "REQUEUE" not in raw.get("PreemptMode", "").upper():
        mode = raw.get("PreemptMode", "OFF")
        yield Lack(
            f"slurm.conf has PreemptMode={mode}: jobs that are preempted are not requeued",
            "PreemptMode=REQUEUE in slurm.conf; restart slurmctld",
        )
    if raw.get("JobRequeue", "1") == "0":
        yield Lack(
            "slurm.conf has JobRequeue=0: borrowing jobs without --requeue are cancelled",
            "JobRequeue=1 in slurm.conf; scontrol reconfigure",
        )
    enforced = set(raw.get("AccountingStorageEnforce", "").lower().split(","))
    if enforced.isdisjoint({"qos", "all"}):
        yield Lack(
            "slurm.conf lacks AccountingStorageEnforce=…,qos: anybody may run in an owner's QOS",
            "AccountingStorageEnforce=associations,limits,qos in slurm.conf; restart slurmctld",
        )
    least_s = return_time_s(settings)
    for owner in owners:
        if owner.return_within_s < least_s:
            promised, least = format_duration(owner.return_within_s), format_duration(least_s)
            yield Lack(
                f"owner {owner.group}: return_within of {promised} cannot be promised: it may take {least} "
                "by sched_interval and KillWait of slurm.conf",
                "a longer return_within, or a shorter KillWait",
            )
