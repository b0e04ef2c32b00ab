"""Predict whether a partition rejects a job because of groups, accounts, QOS or requested amounts.

This behaviour was measured on Slurm 22.05, 24.11 and 26.05. Partitions that are only for root or for
reservations refuse other jobs. Up to 22.05, partitions also refuse users whose groups are not allowed. Other
limits depend on EnforcePartLimits. With NO (the default), Slurm accepts a job over these limits and lets it
wait indefinitely. With ANY, one of the job's partitions must allow the job; with ALL, all of them must. If
the job names several partitions, Slurm skips partitions that do not start jobs, and partitions that allow
fewer CPUs per node than one task requires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from slurm_gpu.policy.explain.submitter import Submitter
from slurm_gpu.slurm.job_desc import NO_VAL
from slurm_gpu.slurm.submission import Partition
from slurm_gpu.text.units import counted, format_duration, format_memory_mib

# From this version on, EnforcePartLimits also applies to AllowGroups.
_GROUPS_ARE_A_LIMIT = (23, 2)
# States of a partition that refuses jobs.
_TAKES_NONE = ("DRAIN", "INACTIVE")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """The options of a job that partitions check; an option is None if the job does not set it."""

    # Minutes.
    time_limit: int | None = None
    least_nodes: int | None = None
    # Upper end of a range of nodes.
    most_nodes: int | None = None
    cpus_per_task: int | None = None
    memory_per_node_mib: int | None = None
    in_reservation: bool = False


@dataclass(frozen=True, slots=True)
class Obstacles:
    """The reasons why Slurm refuses a job, or accepts it but does not start it."""

    refused: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()


def find_obstacles(
    partitions: Sequence[Partition],
    requested: PartitionRequest,
    submitter: Submitter,
    enforced: str,
    version: tuple[int, ...] = (22, 5),
) -> Obstacles:
    """Check a job against all partitions that it names.

    `enforced` is EnforcePartLimits: NO, ANY or ALL. `version` is the version of Slurm.
    """
    shut = [next(_shut(part, requested, submitter, version), None) for part in partitions]
    closed = tuple(reason for reason in shut if reason is not None)
    if closed and (enforced != "NO" or len(closed) == len(partitions)):
        return Obstacles(refused=closed)
    exceeded = [next(_exceeded_limits(part, requested, submitter, version), None) for part in partitions]
    over = tuple(reason for reason in exceeded if reason is not None)
    if over and (enforced == "ALL" or (enforced == "ANY" and len(over) == len(partitions))):
        return Obstacles(refused=over)
    useless = [next(_useless(part, requested), None) for part in partitions]
    reasons = tuple(
        one or other or last or "" for one, other, last in zip(shut, exceeded, useless, strict=True)
    )
    if not all(reasons):
        return Obstacles()
    # Slurm accepts the job if it may wait in at least one of its partitions.
    waits = any(
        part.state not in _TAKES_NONE and (other is not None or part.state == "DOWN")
        for part, other in zip(partitions, exceeded, strict=True)
    )
    return Obstacles(waits=reasons) if waits else Obstacles(refused=reasons)


def _shut(
    part: Partition, requested: PartitionRequest, submitter: Submitter, version: tuple[int, ...]
) -> Iterator[str]:
    """Yield the reasons why Slurm refuses the job, regardless of EnforcePartLimits."""
    if part.needs_reservation and not requested.in_reservation:
        yield f"partition {part.name} is for jobs in a reservation only (--reservation)"
    if part.root_only and not submitter.is_root:
        yield f"partition {part.name} is for root only"
    if version < _GROUPS_ARE_A_LIMIT:
        yield from _other_groups(part, submitter)


def _other_groups(part: Partition, submitter: Submitter) -> Iterator[str]:
    allowed, groups = part.allow_groups, submitter.groups
    if allowed is not None and groups is not None and allowed.isdisjoint(groups):
        yield f"partition {part.name} is for members of {_any_of('UNIX group', allowed)} only"


def _exceeded_limits(
    part: Partition, requested: PartitionRequest, submitter: Submitter, version: tuple[int, ...]
) -> Iterator[str]:
    """Yield the partition's limits that the job violates.

    Slurm refuses the job if it enforces these limits; otherwise the job waits.
    """
    where = f"partition {part.name}"
    account = submitter.account
    if version >= _GROUPS_ARE_A_LIMIT:
        yield from _other_groups(part, submitter)
    if account is not None and submitter.ancestors is not None:
        line = {account, *submitter.ancestors}
        if part.allow_accounts is not None and part.allow_accounts.isdisjoint(line):
            yield f"{where} is for {_any_of('account', part.allow_accounts)} only, not for {account}"
        if account in (part.deny_accounts or ()):
            yield f"{where} is not for account {account}"
    # If the job names several QOS, the partition must allow all of them.
    for qos in () if submitter.qos is None else submitter.qos.split(","):
        if part.allow_qos is not None and qos not in part.allow_qos:
            yield f"{where} is for QOS {' or '.join(sorted(part.allow_qos))} only, not for {qos}"
        if qos in (part.deny_qos or ()):
            yield f"{where} is not for QOS {qos}"
    yield from _amounts(part, requested, submitter)


def _amounts(part: Partition, requested: PartitionRequest, submitter: Submitter) -> Iterator[str]:
    where = f"partition {part.name}"
    minutes = None if requested.time_limit == NO_VAL else requested.time_limit
    passes = submitter.passes
    too_long = part.max_time_s is not None and minutes is not None and minutes * 60 > part.max_time_s
    if part.max_time_s is not None and too_long and "PartitionTimeLimit" not in passes:
        yield f"{where} allows at most {format_duration(part.max_time_s)} (--time)"
    most = requested.least_nodes if requested.most_nodes is None else requested.most_nodes
    too_many = part.max_nodes is not None and most is not None and most > part.max_nodes
    if part.max_nodes is not None and too_many and "PartitionMaxNodes" not in passes:
        yield f"{where} allows at most {counted(part.max_nodes, 'node')} (--nodes)"
    too_few = requested.least_nodes is not None and requested.least_nodes < part.min_nodes
    if too_few and "PartitionMinNodes" not in passes:
        yield f"{where} requires at least {counted(part.min_nodes, 'node')} (--nodes)"
    mib, limit = requested.memory_per_node_mib, part.max_memory_per_node_mib
    if mib is not None and limit is not None and (mib == 0 or mib > limit):
        yield f"{where} allows at most {format_memory_mib(limit)} per node (--mem)"


def _useless(part: Partition, requested: PartitionRequest) -> Iterator[str]:
    """Yield the reasons why the job cannot start in the partition, regardless of EnforcePartLimits."""
    if part.state != "UP":
        yield f"partition {part.name} is {part.state} until an operator sets it UP"
    cpus, limit = requested.cpus_per_task, part.max_cpus_per_node
    if cpus is not None and limit is not None and cpus > limit:
        yield f"partition {part.name} allows at most {counted(limit, 'CPU')} per node (--cpus-per-task)"


def _any_of(what: str, names: Collection[str]) -> str:
    return f"{what} {' or '.join(sorted(names))}"
