"""Check whether slurm.conf lets lent GPUs return to their owners, and how long that takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slurm_gpu.config.yaml_source import YamlSource
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.model import GpuOwner, Policy
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.text.units import format_duration

# Slurm's default; the main scheduling loop runs once per interval.
_SCHED_INTERVAL_S = 60
# Time allowed for the epilog, and for Slurm to start the next job.
_CLEAN_UP_S = 30


class Lack(NamedTuple):
    """A setting that slurm.conf lacks, and the remedy."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


def return_time_s(settings: SlurmSettings) -> int:
    """Return the longest time from an owner's submission to the return of lent GPUs.

    Slurm decides to preempt a job, signals it, kills its remaining processes after KillWait, and cleans up.
    """
    raw = settings.raw
    interval = re.search(r"\bsched_interval=(\d+)", raw.get("SchedulerParameters", ""))
    wait = re.match(r"\d+", raw.get("KillWait", ""))
    interval_s = int(interval[1]) if interval else _SCHED_INTERVAL_S
    return interval_s + (int(wait[0]) if wait else 30) + _CLEAN_UP_S


def broken_promises(
    policy: Policy, source: YamlSource, settings: SlurmSettings, n_gpus: int
) -> tuple[InputError, ...]:
    """Return an error for each promise to owners that a cluster with `n_gpus` GPUs cannot keep."""
    found = []
    owned = sum(owner.gpus for owner in policy.owners)
    if owned > n_gpus:
        message = f"owners own {owned} GPUs, but the cluster has only {n_gpus}"
        found.append(source.error(("owners",), message, key=True))
    for owner in policy.owners:
        lack = _late(settings, owner)
        if lack is not None:
            found.append(source.error((*owner.location, "return_within"), str(lack), key=True))
    return tuple(found)


def lacks(settings: SlurmSettings, owners: Iterable[GpuOwner]) -> Iterator[Lack]:
    """Yield the settings that slurm.conf lacks for these owners; without owners, yield nothing."""
    owners = tuple(owners)
    if not owners:
        return
    raw = settings.raw
    yield from preemption_lacks(settings, "lent GPUs are not returned")
    if raw.get("JobRequeue", "1") == "0":
        yield Lack(
            "slurm.conf has JobRequeue=0: borrowing jobs without --requeue are cancelled",
            "set JobRequeue=1 in slurm.conf; run scontrol reconfigure",
        )
    enforced = set(raw.get("AccountingStorageEnforce", "").lower().split(","))
    if enforced.isdisjoint({"qos", "all"}):
        yield Lack(
            "slurm.conf lacks AccountingStorageEnforce=…,qos: any user can run in an owner's QOS",
            "set AccountingStorageEnforce=associations,limits,qos in slurm.conf; restart slurmctld",
        )
    for owner in owners:
        late = _late(settings, owner)
        if late is not None:
            yield late


def preemption_lacks(settings: SlurmSettings, otherwise: str) -> Iterator[Lack]:
    """Yield the settings that slurm.conf lacks to requeue jobs in one QOS for jobs in another.

    `otherwise` is the consequence of a missing PreemptType, for the message.
    """
    raw = settings.raw
    if raw.get("PreemptType", "").lower() != "preempt/qos":
        yield Lack(
            f"slurm.conf lacks PreemptType=preempt/qos: {otherwise}",
            "set PreemptType=preempt/qos and PreemptMode=REQUEUE in slurm.conf; restart slurmctld",
        )
    elif "REQUEUE" not in raw.get("PreemptMode", "").upper():
        mode = raw.get("PreemptMode", "OFF")
        yield Lack(
            f"slurm.conf has PreemptMode={mode}: preempted jobs are not requeued",
            "set PreemptMode=REQUEUE in slurm.conf; restart slurmctld",
        )


def _late(settings: SlurmSettings, owner: GpuOwner) -> Lack | None:
    least_s = return_time_s(settings)
    if owner.return_within_s >= least_s:
        return None
    promised, least = format_duration(owner.return_within_s), format_duration(least_s)
    return Lack(
        f"owner {owner.group}: return_within of {promised} cannot be guaranteed: with sched_interval "
        f"and KillWait in slurm.conf, the return may take {least}",
        "use a longer return_within or a shorter KillWait",
    )
