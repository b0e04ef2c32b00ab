"""Users by name and number."""

from __future__ import annotations

import os
import pwd

from slurm_gpu.errors import UsageError

_FIRST_UNKNOWN_UID = 2**31


def uid_and_name(user: str | None, option: str = "--user") -> tuple[int, str]:
    """Of the user whom `option` names, or of who asks; raises UsageError if this host does not know them."""
    try:
        entry = pwd.getpwuid(os.getuid()) if user is None else pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"{option}: {user!r} is not a user of this host") from None
    return entry.pw_uid, entry.pw_name


class PastUsers:
    """Numbers of the users of past jobs; those who are gone keep one of their own, which no group names."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}

    def uid(self, user: str) -> int:
        """The same for the same name."""
        if user not in self._by_name:
            try:
                uid = pwd.getpwnam(user).pw_uid
            except KeyError:
                uid = _FIRST_UNKNOWN_UID + len(self._by_name)
            self._by_name[user] = uid
        return self._by_name[user]
