"""Whose job it is, as far as partitions ask: UNIX groups, accounts above the job's, and its QOS."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.sacctmgr import LimitField, Sacctmgr
from slurm_gpu.slurm.submission import Partition

_PASSES = ("PartitionTimeLimit", "PartitionMaxNodes", "PartitionMinNodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Whose job it is, and in what; None where that is not known, and so not judged."""

    groups: Collection[str] | None = None
    """UNIX groups."""
    account: str | None = None
    ancestors: Collection[str] | None = None
    """Accounts that the account is part of: whether they count for it depends on Slurm's version."""
    qos: str | None = None
    """Several, joined by commas, from Slurm 24.11 on."""
    passes: Collection[str] = ()
    """Flags of the QOS (of each of several) by which partitions do not bind, such as PartitionTimeLimit."""
    is_root: bool = False


def read_submitter(
    store: Sacctmgr | None,
    cluster: str,
    user: str,
    account: str | None,
    qos: str | None,
    partitions: Sequence[Partition],
) -> Submitter:
    """What is to be known of a user's job; what cannot be read is not.

    `store` is asked only where a partition's limits depend on it; None while slurmdbd is away.
    """
    above: Collection[str] | None = None
    passes: Collection[str] = ()
    if store and account and any(part.allow_accounts or part.deny_accounts for part in partitions):
        above = _ancestors(store, cluster, account.lower())
    if store and qos and any(_has_flagged_limit(part) for part in partitions):
        passes = _passes(store, qos.lower())
    return Submitter(
        groups=_groups_of(user),
        account=None if account is None else account.lower(),
        ancestors=above,
        qos=None if qos is None else qos.lower(),
        passes=passes,
        is_root=_is_root(user),
    )


def _is_root(user: str) -> bool:
    try:
        return pwd.getpwnam(user).pw_uid == 0
    except KeyError:
        return False


def _groups_of(user: str) -> Collection[str] | None:
    """None for root, whom partitions let in."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    names = set()
    for gid in os.getgrouplist(user, entry.pw_gid):
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue  # a group without a name, which no partition can name
    return names if entry.pw_uid else None


def _ancestors(store: Sacctmgr, cluster: str, account: str) -> Collection[str] | None:
    try:
        associations = store.associations(cluster)
    except SlurmError:
        return None
    parents = {one.account: one.parent for one in associations if not one.user}
    above: list[str] = []
    while (parent := parents.get(above[-1] if above else account)) and parent not in above:
        above.append(parent)
    return above


def _has_flagged_limit(part: Partition) -> bool:
    return part.max_time_s is not None or part.max_nodes is not None or part.min_nodes > 1


def _passes(store: Sacctmgr, qos: str) -> Collection[str]:
    try:
        known = {one.name: one.limits for one in store.qos()}
    except SlurmError:
        return ()
    qos_limits = [known.get(name, {}) for name in qos.split(",")]
    return [flag for flag in _PASSES if all(LimitField("Flags", flag) in limits for limits in qos_limits)]
