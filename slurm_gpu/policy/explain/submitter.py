"""Read the properties of a submitter that Slurm checks: UNIX groups, associations and QOS."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.sacctmgr import Association, LimitField, Qos, Sacctmgr

_PASSES = ("PartitionTimeLimit", "PartitionMaxNodes", "PartitionMinNodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """The user, account and QOS of a job; unknown values are None and are not checked."""

    # UNIX groups.
    groups: Collection[str] | None = None
    account: str | None = None
    # Parent accounts; a partition that allows one of them also allows the account.
    ancestors: Collection[str] | None = None
    # From Slurm 24.11 on, this may be several names, separated by commas.
    qos: str | None = None
    # Flags that override limits of partitions, such as PartitionTimeLimit; only those that all the job's QOS
    # share.
    passes: Collection[str] = ()
    is_root: bool = False
    # The user's own association with the account, then the associations of the account and its parents.
    associations: Sequence[Association] = ()
    # All QOS in slurmdbd, by name.
    known_qos: Mapping[str, Qos] = field(default_factory=dict)


def read_submitter(
    store: Sacctmgr | None, cluster: str, user: str, account: str | None, qos: str | None
) -> Submitter:
    """Return the groups, accounts and QOS of a user's job; unknown values are None or empty.

    `store` is None if slurmdbd is unavailable.
    """
    account = None if account is None else account.lower()
    associations: Sequence[Association] = ()
    known_qos: Mapping[str, Qos] = {}
    if store is not None:
        with contextlib.suppress(SlurmError):
            known_qos = {one.name: one for one in store.qos()}
            associations = store.associations(cluster)
    above = None if account is None or not associations else _ancestors(associations, account)
    return Submitter(
        groups=_groups_of(user),
        account=account,
        ancestors=above,
        qos=None if qos is None else qos.lower(),
        passes=_passes(known_qos, qos.lower()) if qos else (),
        is_root=_is_root(user),
        associations=() if account is None else _applicable(associations, user, (account, *(above or ()))),
        known_qos=known_qos,
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


def _ancestors(associations: Sequence[Association], account: str) -> list[str]:
    parents = {one.account: one.parent for one in associations if not one.user}
    above: list[str] = []
    while (parent := parents.get(above[-1] if above else account)) and parent not in above:
        above.append(parent)
    return above


def _applicable(associations: Sequence[Association], user: str, accounts: Sequence[str]) -> list[Association]:
    """Return the associations whose limits apply; [] if the user has associations by partition."""
    own = [one for one in associations if one.user == user and one.account == accounts[0]]
    if any(one.partition for one in own):
        return []
    by_account = {one.account: one for one in associations if not one.user}
    return own + [by_account[name] for name in accounts if name in by_account]


def _passes(known_qos: Mapping[str, Qos], qos: str) -> Collection[str]:
    limits = [known_qos[name].limits if name in known_qos else {} for name in qos.split(",")]
    return [flag for flag in _PASSES if all(LimitField("Flags", flag) in one for one in limits)]
