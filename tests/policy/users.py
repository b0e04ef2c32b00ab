"""A directory of accounts and three users: alice 1001, bob 1002 and carol 1003, the last two in undergrad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UIDS = {"alice": 1001, "bob": 1002, "carol": 1003}
NAMES = {uid: name for name, uid in UIDS.items()}
ACCOUNTS = ("vision", "nlp")
# The account above each account.
PARENTS = {"root": "", "dept": "root", "vision": "dept", "nlp": "dept", "nlp-old": "nlp", "other": "root"}
MEMBERS = {"undergrad": frozenset({1002, 1003}), "empty": frozenset[int]()}


class Directory:
    parents: Mapping[str, str] = PARENTS

    def uid(self, user: str) -> int | None:
        return UIDS.get(user)

    def member_uids(self, group: str) -> frozenset[int] | None:
        return MEMBERS.get(group)

    def known_users(self) -> Sequence[str]:
        return list(UIDS)

    def known_groups(self) -> Sequence[str]:
        return list(MEMBERS)
