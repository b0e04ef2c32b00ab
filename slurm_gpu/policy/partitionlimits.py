"""What a partition keeps out: groups, accounts, QOS, and jobs that ask for more time than it gives.

Measured on 22.05. Who is in none of the groups is refused. For the rest EnforcePartLimits decides: with NO,
the default, Slurm takes the job and lets it wait for ever; with ANY one of the partitions has to be right,
with ALL each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from slurm_gpu.policy.script import NO_VAL
from slurm_gpu.policy.submitter import Submitter
from slurm_gpu.slurm.submission import Partition
from slurm_gpu.units import format_duration


@dataclass(frozen=True, slots=True)
class Barred:
    """Why a job gets into none of its partitions, and whether Slurm says so or lets it wait."""

    refused: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()


def barred(
    partitions: Sequence[Partition], time_limit: object, submitter: Submitter, enforced: str
) -> Barred:
    """Judge a job by all partitions that it names; its time limit is in minutes.

    `enforced` is EnforcePartLimits: NO, ANY or ALL.
    """
    shut = [_shut_group(part, submitter) for part in partitions]
    told = tuple(reason for reason in shut if reason is not None)
    if told and (enforced != "NO" or len(told) == len(partitions)):
        return Barred(refused=told)
    beyond = [next(_beyond(part, time_limit, submitter), None) for part in partitions]
    reasons = tuple(one or other or "" for one, other in zip(shut, beyond, strict=True) if one or other)
    if not reasons or (enforced != "ALL" and len(reasons) < len(partitions)):
        return Barred()
    return Barred(waits=reasons) if enforced == "NO" else Barred(refused=reasons)


def _shut_group(part: Partition, submitter: Submitter) -> str | None:
    allowed, groups = part.allow_groups, submitter.groups
    if allowed is None or groups is None or not allowed.isdisjoint(groups):
        return None
    return f"partition {part.name} is for members of {_any_of('UNIX group', allowed)} only"


def _beyond(part: Partition, time_limit: object, submitter: Submitter) -> Iterator[str]:
    where = f"partition {part.name}"
    account, qos = submitter.account, submitter.qos
    if account is not None and submitter.ancestors is not None:
        line = {account, *submitter.ancestors}
        if part.allow_accounts is not None and part.allow_accounts.isdisjoint(line):
            yield f"{where} is for {_any_of('account', part.allow_accounts)} only, not for {account}"
        if account in (part.deny_accounts or ()):
            yield f"{where} is not for account {account}"
    if qos is not None:
        if part.allow_qos is not None and qos not in part.allow_qos:
            yield f"{where} is for QOS {' or '.join(sorted(part.allow_qos))} only, not for {qos}"
        if qos in (part.deny_qos or ()):
            yield f"{where} is not for QOS {qos}"
    if qos is not None and qos in submitter.qos_over_time:
        return
    asked_s = None if not isinstance(time_limit, int) or time_limit == NO_VAL else time_limit * 60
    if part.max_time_s is not None and asked_s is not None and asked_s > part.max_time_s:
        yield f"{where} gives {format_duration(part.max_time_s)} at most (--time)"


def _any_of(what: str, names: Collection[str]) -> str:
    return f"{what} {' or '.join(sorted(names))}"
