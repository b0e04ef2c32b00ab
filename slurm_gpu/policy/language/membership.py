"""Decide which jobs are in a group: wildcards in names, and groups defined by other groups."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from slurm_gpu.policy.language.model import Group

# The keys of the conditions that a group sets itself.
CONDITIONS = ("users", "unix_groups", "accounts", "qos", "partitions")


def has_wildcard(name: str) -> bool:
    """Return whether a name is a pattern that may match several names."""
    return "*" in name or "?" in name


def is_among(name: str, names: Collection[str]) -> bool:
    """Return whether a name is one of `names`, or is matched by a wildcard among them."""
    return name in names or any(has_wildcard(one) and _regex(one).fullmatch(name) for one in names)


@functools.lru_cache(maxsize=1024)
def _regex(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def example_of(name: str) -> str:
    """Return a name that a wildcard matches: lab_* → lab_."""
    return name.replace("*", "").replace("?", "x")


def holds(
    own: Iterable[bool | None], all_of: Iterable[bool | None], none_of: Iterable[bool | None]
) -> bool | None:
    """Return whether a job is in a group; None if this is unknown.

    Each argument contains answers (None if unknown): `own` for the group's own conditions, `all_of` and
    `none_of` for other groups.
    """
    answers = [*own, *all_of, *(None if answer is None else not answer for answer in none_of)]
    return False if False in answers else None if None in answers else True


def conditions_used(group: Group, groups: Mapping[str, Group]) -> frozenset[str]:
    """Return the keys of all conditions on which membership depends, including those of other groups."""
    own = {key for key in CONDITIONS if getattr(group, key) is not None}
    others = (conditions_used(groups[name], groups) for name in (*group.all_of, *group.none_of))
    return frozenset(own).union(*others)


def with_required(group: Group, groups: Mapping[str, Group]) -> Iterator[Group]:
    """Yield the group and all groups that must contain its jobs."""
    yield group
    for name in group.all_of:
        yield from with_required(groups[name], groups)
