"""Read Slurm's defaults for a submission: partitions and their time limits, the account and the QOS."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.runner import QUERY_TIMEOUT_S, CommandRunner, run_command
from slurm_gpu.slurm.scontrol import parse_time_limit

_LICENSE = re.compile(r"LicenseName=(\S+)\s+Total=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition. Times are in seconds; None means UNLIMITED or, for the default time, NONE."""

    name: str
    is_default: bool
    default_time_s: int | None
    max_time_s: int | None
    whole_nodes: bool = False
    """Whether whole nodes are allocated to each job: OverSubscribe=EXCLUSIVE, or Exclusive=NODE in 26.05."""
    allow_groups: frozenset[str] | None = None
    """UNIX groups that can use it. None, here and in the next four fields, means no restriction."""
    allow_accounts: frozenset[str] | None = None
    deny_accounts: frozenset[str] | None = None
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] | None = None
    qos: str | None = None
    """The QOS whose limits apply to its jobs, in lower case; None if it has none."""
    min_nodes: int = 0
    max_nodes: int | None = None
    """Maximum number of nodes of one job. None, here and in the next two fields, means no limit."""
    max_cpus_per_node: int | None = None
    max_memory_per_node_mib: int | None = None
    default_memory_per_gpu_mib: int | None = None
    """Memory of a job without --mem. None, here and in the next two fields, means slurm.conf's default."""
    default_memory_per_cpu_mib: int | None = None
    default_memory_per_node_mib: int | None = None
    root_only: bool = False
    needs_reservation: bool = False
    state: str = "UP"
    """UP, DOWN (accepts jobs but starts none), DRAIN (starts jobs but accepts none) or INACTIVE (neither)."""
    raw: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """All settings as scontrol prints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDefaults:
    """Default account and QOS of a user's job; each is None if Slurm's accounting does not provide it."""

    account: str | None = None
    qos: str | None = None
    from_slurmdbd: bool = True
    """Whether slurmdbd answered. Otherwise, slurmctld provided the account, and the QOS is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAssociations:
    """Accounts and QOS to which a user can submit jobs, in lower case; None if unknown."""

    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    from_slurmdbd: bool = True


def read_partitions(
    run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> Sequence[Partition]:
    """Return all partitions, even those hidden from the caller; raise SlurmError if Slurm does not answer."""
    text = run(["scontrol", "--all", "--oneliner", "show", "partition"], environ, QUERY_TIMEOUT_S)
    return [_partition(line) for line in text.splitlines() if line.startswith("PartitionName=")]


def read_licenses(
    run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> Mapping[str, int]:
    """Return the total number of each licence, free or in use; raise SlurmError if Slurm does not answer."""
    text = run(["scontrol", "--oneliner", "show", "licenses"], environ, QUERY_TIMEOUT_S)
    return {name: int(total) for name, total in _LICENSE.findall(text)}


def read_user_defaults(
    user: str, account: str | None, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> UserDefaults:
    """Return the defaults of a user for `account`, where None means the default account.

    The defaults are None if there is no accounting storage, or if it does not contain the user. If slurmdbd
    is down, slurmctld provides the account.
    """
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "withassoc"]
    argv += ["format=DefaultAccount,Account,DefaultQOS"]
    try:
        text = run(argv, environ, QUERY_TIMEOUT_S)
    except SlurmError:
        return UserDefaults(account=account or _account_in_slurmctld(user, run, environ), from_slurmdbd=False)
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    if not rows:
        return UserDefaults(account=account)
    chosen = account if account is not None else rows[0][0] or None
    qos = next((row[2] for row in rows if row[1] == chosen and row[2]), None)
    return UserDefaults(account=chosen, qos=qos)


def read_user_associations(
    user: str, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> UserAssociations:
    """Return the user's associations; they are unknown if accounting storage is missing or lacks the user."""
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


def _account_in_slurmctld(user: str, run: CommandRunner, environ: Mapping[str, str]) -> str | None:
    """Return the user's default account from slurmctld's memory."""
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
        qos=None if fields.get("QoS", "N/A") == "N/A" else fields["QoS"].lower(),
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
        raw=fields,
    )


def memory_per_gpu(job_defaults: str) -> int | None:
    """Return DefMemPerGPU in MiB from JobDefaults of a partition or of slurm.conf; None if it is not set."""
    found = re.search(r"\bDefMemPerGPU=(\d+)", job_defaults)
    return int(found[1]) if found else None


def _names(text: str) -> frozenset[str] | None:
    # ALL and no value mean no restriction.
    return None if text.upper() in ("ALL", "NONE", "N/A", "(NULL)", "") else frozenset(text.split(","))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
