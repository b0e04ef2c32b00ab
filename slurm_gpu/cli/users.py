"""Find users by name and uid."""

from __future__ import annotations

import os
import pwd

from slurm_gpu.errors import UsageError

_FIRST_UNKNOWN_UID = 2**31


def uid_and_name(user: str | None, option: str = "--user") -> tuple[int, str]:
    """Return uid and name of `user`, or of the caller; raise UsageError for an unknown user.

    `option` names the option in the message.
    """
    if user is None:
        uid = os.getuid()
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise UsageError(
                f"uid {uid} has no user name on this host (getent passwd {uid}): run this as another user"
            ) from None
        return entry.pw_uid, entry.pw_name
    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError):
        raise UsageError(f"{option}: {user!r} is not a user of this host") from None
    return entry.pw_uid, entry.pw_name


class PastUsers:
    """The uids of the users of past jobs; a deleted user gets a uid that no group contains."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}

    def uid(self, user: str) -> int:
        """Return the uid of `user`, always the same for the same name."""
        if user not in self._by_name:
            try:
                uid = pwd.getpwnam(user).pw_uid
            except KeyError:
                uid = _FIRST_UNKNOWN_UID + len(self._by_name)
            self._by_name[user] = uid
        return self._by_name[user]
