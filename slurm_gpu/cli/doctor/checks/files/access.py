"""Check whether a user may access a file; doctor itself runs as root, which may read every file."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

# The uid of `nobody`, which represents any user without files or groups.
ANY_USER = 65534
# The permissions required to run a script, because its interpreter also reads it.
EXECUTE = stat.S_IROTH | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class Denied:
    """The file or directory that denies a user access, and the command that grants it."""

    part: Path
    remedy: str


def denies(path: Path, uid: int, right: int = stat.S_IROTH) -> Denied | None:
    """Return what denies a user access to a file or directory; None if nothing does.

    `right` is the required permission, given as the bits for others. Raise FileNotFoundError if a file is
    missing.
    """
    needed = right | (stat.S_IXOTH if path.is_dir() else 0)
    for part in (path, *path.parents):
        if not _may(part.stat(), uid, needed):
            bits = {"r": stat.S_IROTH, "w": stat.S_IWOTH, "x": stat.S_IXOTH}
            mode = "".join(letter for letter, bit in bits.items() if bit & needed)
            return Denied(part, f"run chmod o+{mode} {shlex.quote(str(part))}")
        needed = stat.S_IXOTH
    return None


def _may(status: os.stat_result, uid: int, right: int) -> bool:
    """Return whether the mode of a file grants a user the permission `right`."""
    if uid in (0, status.st_uid):
        return uid == 0 or status.st_mode & (right << 6) == right << 6
    if status.st_gid in _groups(uid):
        return status.st_mode & (right << 3) == right << 3
    return status.st_mode & right == right


def _groups(uid: int) -> list[int]:
    if uid == ANY_USER:
        return []
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)
