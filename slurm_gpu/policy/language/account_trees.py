"""Replace each account tree, such as dept/*, by its top account and all accounts below it in slurmdbd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.model import Policy

if TYPE_CHECKING:
    from slurm_gpu.policy.language.names import ResolvedNames

_BELOW = "/*"


def is_tree(name: str) -> bool:
    """Return whether a name means an account and all accounts below it."""
    return name.endswith(_BELOW)


def root_of(tree: str) -> str:
    """Return the account at the top of a tree, in lower case as in slurmdbd."""
    return tree.removesuffix(_BELOW).lower()


def tree_text(name: str) -> str:
    """Describe the accounts that a name means, such as "dept and its sub-accounts"."""
    return f"{name.removesuffix(_BELOW)} and its sub-accounts" if is_tree(name) else name


def trees_of(policy: Policy) -> Iterator[tuple[Location, str]]:
    """Yield each tree with its location in the file."""
    places: list[tuple[Location, Iterable[str] | None]] = [
        (("groups", group.name, "accounts"), group.accounts) for group in policy.groups.values()
    ]
    places.append((("manages", "accounts"), policy.manages.accounts))
    for location, names in places:
        yield from (((*location, index), name) for index, name in enumerate(names or ()) if is_tree(name))


def accounts_below(root: str, parents: Mapping[str, str]) -> frozenset[str]:
    """Return an account and all accounts below it, given the parent of each account.

    Return an empty set if the account does not exist.
    """
    found, following = set[str](), {root} & parents.keys()
    while following:
        found |= following
        following = {account for account, parent in parents.items() if parent in following} - found
    return frozenset(found)


def with_listed(policy: Policy, names: ResolvedNames) -> Policy:
    """Return the policy with each tree replaced by its accounts; unknown trees remain."""

    def listed(written: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            account for name in written for account in sorted(names.trees.get(name.lower(), (name,)))
        )

    groups = {
        name: group if group.accounts is None else replace(group, accounts=listed(group.accounts))
        for name, group in policy.groups.items()
    }
    manages = replace(policy.manages, accounts=listed(policy.manages.accounts))
    return replace(policy, groups=groups, manages=manages)
