"""The user whom a command is about."""

from __future__ import annotations

import os
import pwd

from slurm_gpu.errors import UsageError


def uid_and_name(user: str | None) -> tuple[int, str]:
    """Of the user whom `--user` names, or of who asks; raises UsageError if this host does not know them."""
    try:
        entry = pwd.getpwuid(os.getuid()) if user is None else pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"--user: {user!r} is not a user of this host") from None
    return entry.pw_uid, entry.pw_name
