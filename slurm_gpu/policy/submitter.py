"""Whose job it is, as far as partitions ask: UNIX groups, accounts above the job's, and its QOS."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.sacctmgr import LimitField, LimitStore
from slurm_gpu.slurm.submission import Partition

_NO_MAX_TIME = LimitField("Flags", "PartitionTimeLimit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Whose job it is, and in what; None where that is not known, and so not judged."""

    groups: Collection[str] | None = None
    """UNIX groups."""
    account: str | None = None
    ancestors: Collection[str] | None = None
    """Accounts that the account is part of: whether they count for it depends on Slurm's version."""
    qos: str | None = None
    qos_over_time: Collection[str] = ()
    """QOS whose jobs no MaxTime binds (flag PartitionTimeLimit)."""


def read_submitter(
    store: LimitStore | None,
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
    over_time: Collection[str] = ()
    if store and account and any(part.allow_accounts or part.deny_accounts for part in partitions):
        above = _ancestors(store, cluster, account.lower())
    if store and any(part.max_time_s is not None for part in partitions):
        over_time = _over_time(store)
    return Submitter(
        groups=_groups_of(user),
        account=None if account is None else account.lower(),
        ancestors=above,
        qos=None if qos is None else qos.lower(),
        qos_over_time=over_time,
    )


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


def _ancestors(store: LimitStore, cluster: str, account: str) -> Collection[str] | None:
    try:
        associations = store.associations(cluster)
    except SlurmError:
        return None
    parents = {one.account: one.parent for one in associations if not one.user}
    above: list[str] = []
    while (parent := parents.get(above[-1] if above else account)) and parent not in above:
        above.append(parent)
    return above


def _over_time(store: LimitStore) -> Collection[str]:
    try:
        return {one.name for one in store.qos() if _NO_MAX_TIME in one.limits}
    except SlurmError:
        return ()
