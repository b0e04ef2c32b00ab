"""What Slurm fills in where a user says nothing: partitions and their times, default account, QOS."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import QUERY_TIMEOUT_S, CommandRunner, run_command
from slurm_gpu.slurm.scontrol import parse_time_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition; times in seconds, None where Slurm says UNLIMITED (or, for the default, NONE)."""

    name: str
    is_default: bool
    default_time_s: int | None
    max_time_s: int | None
    whole_nodes: bool = False
    """Whether each job has its nodes to itself: OverSubscribe=EXCLUSIVE, Exclusive=NODE in 26.05."""
    allow_groups: frozenset[str] | None = None
    """UNIX groups that may use it; None, here and below, where it does not say."""
    allow_accounts: frozenset[str] | None = None
    deny_accounts: frozenset[str] | None = None
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] | None = None
    min_nodes: int = 0
    max_nodes: int | None = None
    """Of one job; None, here and below, where there is no limit."""
    max_cpus_per_node: int | None = None
    max_memory_per_node_mib: int | None = None
    default_memory_per_gpu_mib: int | None = None
    """What a job gets that does not say --mem; None, here and below, where slurm.conf's default counts."""
    default_memory_per_cpu_mib: int | None = None
    default_memory_per_node_mib: int | None = None
    root_only: bool = False
    needs_reservation: bool = False
    state: str = "UP"
    """UP, DOWN (jobs may be submitted and do not start), DRAIN (the other way round), INACTIVE (neither)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDefaults:
    """Account and QOS that a user's job gets without options; None where Slurm has no accounting for it."""

    account: str | None = None
    qos: str | None = None
    from_slurmdbd: bool = True
    """Whether slurmdbd told them; else the account is as slurmctld remembers it, and the QOS is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAssociations:
    """Accounts and QOS that a user may submit to, in lower case; None where Slurm does not say."""

    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    from_slurmdbd: bool = True
    """Whether slurmdbd answered."""


def read_partitions(
    run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> Sequence[Partition]:
    """All partitions, also those that are hidden from the caller; raises SlurmError where Slurm is silent."""
    text = run(["scontrol", "--all", "--oneliner", "show", "partition"], environ, QUERY_TIMEOUT_S)
    return [_partition(line) for line in text.splitlines() if line.startswith("PartitionName=")]


def read_user_defaults(
    user: str, account: str | None, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> UserDefaults:
    """Defaults of a user (for `account`, or for the default account where it is None).

    Empty where there is no accounting storage or no such user in it; while slurmdbd is away slurmctld is
    asked.
    """
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "withassoc"]
    argv += ["format=DefaultAccount,Account,DefaultQOS"]
    try:
        text = run(argv, environ, QUERY_TIMEOUT_S)
    except SlurmError:
        return UserDefaults(account=account or _remembered_account(user, run, environ), from_slurmdbd=False)
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    if not rows:
        return UserDefaults(account=account)
    chosen = account if account is not None else rows[0][0] or None
    qos = next((row[2] for row in rows if row[1] == chosen and row[2]), None)
    return UserDefaults(account=chosen, qos=qos)


def read_user_associations(
    user: str, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> UserAssociations:
    """The user's associations; nothing is known without accounting storage, or of an unknown user."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}", "format=Account,QOS"]
    try:
        text = run(argv, environ, QUERY_TIMEOUT_S)
    except SlurmError:
        return UserAssociations(from_slurmdbd=False)
    rows = [line.lower().split("|") for line in text.splitlines() if line.count("|") == 1]
    if not rows:
        return UserAssociations()
    qos = {name for _, names in rows for name in names.split(",") if name}
    return UserAssociations(accounts=frozenset(account for account, _ in rows), qos=frozenset(qos) or None)


def _remembered_account(user: str, run: CommandRunner, environ: Mapping[str, str]) -> str | None:
    """The default account as slurmctld has it in memory."""
    argv = ["scontrol", "show", "assoc_mgr", f"users={user}", "flags=users"]
    try:
        text = run(argv, environ, QUERY_TIMEOUT_S)
    except SlurmError:
        return None
    found = re.search(r"^UserName=\S+ DefAccount=(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def _partition(line: str) -> Partition:
    fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
    return Partition(
        name=fields["PartitionName"],
        is_default=fields.get("Default") == "YES",
        default_time_s=parse_time_limit(fields.get("DefaultTime", "NONE")),
        max_time_s=parse_time_limit(fields.get("MaxTime", "UNLIMITED")),
        whole_nodes=fields.get("OverSubscribe") == "EXCLUSIVE" or fields.get("Exclusive") in ("NODE", "TOPO"),
        allow_groups=_names(fields.get("AllowGroups", "ALL")),
        allow_accounts=_names(fields.get("AllowAccounts", "ALL").lower()),
        deny_accounts=_names(fields.get("DenyAccounts", "ALL").lower()),
        allow_qos=_names(fields.get("AllowQos", "ALL").lower()),
        deny_qos=_names(fields.get("DenyQos", "ALL").lower()),
        min_nodes=_number(fields.get("MinNodes", "0")) or 0,
        max_nodes=_number(fields.get("MaxNodes", "UNLIMITED")),
        max_cpus_per_node=_number(fields.get("MaxCPUsPerNode", "UNLIMITED")),
        max_memory_per_node_mib=_number(fields.get("MaxMemPerNode", "UNLIMITED")),
        default_memory_per_gpu_mib=memory_per_gpu(fields.get("JobDefaults", "")),
        default_memory_per_cpu_mib=_number(fields.get("DefMemPerCPU", "UNLIMITED")),
        default_memory_per_node_mib=_number(fields.get("DefMemPerNode", "UNLIMITED")),
        root_only=fields.get("RootOnly") == "YES",
        needs_reservation=fields.get("ReqResv") == "YES",
        state=fields.get("State", "UP"),
    )


def memory_per_gpu(job_defaults: str) -> int | None:
    """DefMemPerGPU, in MiB: scontrol shows it under JobDefaults, of a partition as of slurm.conf."""
    found = re.search(r"\bDefMemPerGPU=(\d+)", job_defaults)
    return int(found[1]) if found else None


def _names(text: str) -> frozenset[str] | None:
    """None where Slurm shows ALL, or nothing."""
    return None if text.upper() in ("ALL", "NONE", "N/A", "(NULL)", "") else frozenset(text.split(","))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
