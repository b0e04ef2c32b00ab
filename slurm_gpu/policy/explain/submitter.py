"""Read the properties of a submitter that partitions check: UNIX groups, parent accounts and QOS."""

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
    """The user, account and QOS of a job; unknown values are None and are not checked."""

    # UNIX groups.
    groups: Collection[str] | None = None
    account: str | None = None
    # Parent accounts; whether partitions consider them depends on Slurm's version.
    ancestors: Collection[str] | None = None
    # Several names separated by commas, from Slurm 24.11 on.
    qos: str | None = None
    # Flags of the QOS that override limits of partitions, such as PartitionTimeLimit; all QOS must have them.
    passes: Collection[str] = ()
    is_root: bool = False


def read_submitter(
    store: Sacctmgr | None,
    cluster: str,
    user: str,
    account: str | None,
    qos: str | None,
    partitions: Sequence[Partition],
) -> Submitter:
    """Return the groups, accounts and QOS flags of a user's job; unknown values are None or empty.

    `store` is queried only if a partition's limits depend on slurmdbd; it is None if slurmdbd is unavailable.
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
    """Return the UNIX groups of a user; None for root, whom all partitions allow, and for unknown users."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    names = set()
    for gid in os.getgrouplist(user, entry.pw_gid):
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue  # no partition can allow a group without a name
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
