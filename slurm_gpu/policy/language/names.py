"""Resolve the users and UNIX groups of a policy to IDs, and its account trees to accounts.

slurmctld must not wait for NSS or slurmdbd, so membership is resolved when the policy is applied. After
membership changes, apply the policy again.
"""

from __future__ import annotations

import difflib
import functools
import grp
import pwd
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from slurm_gpu.config.yaml_source import YamlSource
from slurm_gpu.errors import InputError, OutsideError
from slurm_gpu.policy.language.account_trees import accounts_below, root_of, trees_of
from slurm_gpu.policy.language.membership import has_wildcard, is_among
from slurm_gpu.policy.language.model import Policy


def _no_accounts() -> Mapping[str, str]:
    raise OutsideError("slurmdbd is not known here")


class SystemDirectory:
    """The users and groups that NSS provides on this host, and the accounts in slurmdbd."""

    def __init__(self, parents: Callable[[], Mapping[str, str]] = _no_accounts) -> None:
        """Read accounts with `parents`, which returns the parent of each account or raises OutsideError."""
        self._parents = parents

    @functools.cached_property
    def parents(self) -> Mapping[str, str]:
        """The parent of each account in slurmdbd; raise OutsideError if slurmdbd cannot be read."""
        return self._parents()

    def uid(self, user: str) -> int | None:
        """Return the UID of a user; None if the user does not exist."""
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            return None

    def member_uids(self, group: str) -> frozenset[int] | None:
        """Return the UIDs of the members, including by primary group; None if the group does not exist."""
        try:
            entry = grp.getgrnam(group)
        except KeyError:
            return None
        uids = {user.pw_uid for user in pwd.getpwall() if user.pw_gid == entry.gr_gid}
        uids.update(uid for uid in map(self.uid, entry.gr_mem) if uid is not None)
        return frozenset(uids)

    def known_users(self) -> Sequence[str]:
        """Return all users that NSS enumerates."""
        return [user.pw_name for user in pwd.getpwall()]

    def known_groups(self) -> Sequence[str]:
        """Return all groups that NSS enumerates."""
        return [group.gr_name for group in grp.getgrall()]


@dataclass(frozen=True, slots=True)
class ResolvedNames:
    """IDs of the names in a policy, and an error for each unknown name."""

    uids: dict[str, int] = field(default_factory=dict)
    members: dict[str, frozenset[int]] = field(default_factory=dict)
    unknown: tuple[InputError, ...] = ()
    # The UIDs of all users that a wildcard matches.
    matched: dict[str, frozenset[int]] = field(default_factory=dict)
    # All accounts of each account tree, in lower case.
    trees: dict[str, frozenset[str]] = field(default_factory=dict)

    def uids_of(self, users: Collection[str]) -> set[int]:
        """Return the UIDs of all known users that match these names and wildcards."""
        single = {self.uids[name] for name in users if name in self.uids}
        return single.union(*(self.matched.get(name, ()) for name in users))


def resolve_names(policy: Policy, source: YamlSource, directory: SystemDirectory) -> ResolvedNames:
    """Look up every user, UNIX group and account tree that the policy names."""
    names = ResolvedNames()
    unknown: list[InputError] = []

    def user(name: str, location: Sequence[str | int]) -> None:
        if has_wildcard(name):
            users = (user for user in directory.known_users() if is_among(user, (name,)))
            uids = frozenset(uid for uid in map(directory.uid, users) if uid is not None)
            if not uids:
                message = f"no user of this host matches {name!r} (see getent passwd); list the users"
                unknown.append(source.error(location, message))
            names.matched[name] = uids
            return
        uid = directory.uid(name)
        if uid is None:
            hint = suggest(name, directory.known_users(), "create the user first")
            unknown.append(source.error(location, f"{name!r} is not a user of this host; {hint}"))
        else:
            names.uids[name] = uid

    for group in policy.groups.values():
        for index, name in enumerate(group.users or ()):
            user(name, ("groups", group.name, "users", index))
        for index, name in enumerate(group.unix_groups or ()):
            members = directory.member_uids(name)
            if members is None:
                hint = suggest(name, directory.known_groups(), "create the group first")
                place = ("groups", group.name, "unix_groups", index)
                unknown.append(source.error(place, f"{name!r} is not a UNIX group of this host; {hint}"))
            else:
                names.members[name] = members
    for exception in policy.exceptions:
        if exception.user is not None:
            user(exception.user, (*exception.location, "user"))
    for location, tree in trees_of(policy):
        try:
            found = accounts_below(root_of(tree), directory.parents)
        except OutsideError as error:
            reason = str(error).partition("\n")[0]
            message = f"the accounts of {tree!r} cannot be read from slurmdbd: {reason}"
            unknown.append(source.error(location, message))
            continue
        if not found:
            hint = suggest(root_of(tree), directory.parents, "see sacctmgr show associations")
            message = f"the cluster has no account {root_of(tree)!r} in slurmdbd; {hint}"
            unknown.append(source.error(location, message))
        else:
            names.trees[tree.lower()] = found
    unknown.sort(key=lambda error: (error.line, error.column))
    return replace(names, unknown=tuple(unknown))


def unmanaged_accounts(policy: Policy, source: YamlSource) -> tuple[InputError, ...]:
    """Return an error for each account of a group that is not in `manages: accounts`.

    Such an account is probably misspelt. The check is skipped if `manages: accounts` is empty.
    """
    managed = {name.lower() for name in policy.manages.accounts}
    return tuple(
        source.error(
            ("groups", group.name, "accounts", index),
            f"account {name!r} is not in manages: accounts; {suggest(name, managed, 'add it there')}",
        )
        for group in policy.groups.values()
        for index, name in enumerate(group.accounts or ())
        if managed
        and name.lower() not in managed
        and not any(fnmatchcase(root_of(name), pattern) for pattern in managed)
        and not any(is_among(one, (root_of(name),)) for one in map(root_of, managed))
    )


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the end of a message about an unknown name: a similar name, or `otherwise`."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else otherwise
