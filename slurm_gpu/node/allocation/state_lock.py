"""One slurm-gpud to a state directory: the second is told who was first."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path


def own_directory(directory: Path) -> None:
    """Make it, or make sure that nobody but its owner, who we are, may write there.

    Raises OSError where that fails: what is read from there would be another's word.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise NotADirectoryError(
            errno.ENOTDIR, "is a link; slurm-gpud wants a directory of its own", str(directory)
        )
    if status.st_uid != os.geteuid():
        why = f"belongs to uid {status.st_uid}, not to {os.geteuid()}, as whom slurm-gpud runs"
        raise PermissionError(errno.EPERM, why, str(directory))
    directory.chmod(0o700)


def lock_directory(directory: Path) -> None:
    """Hold it, without a file of ours in it, until this process ends; raises BlockingIOError if one does."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BlockingIOError(error.errno, "is in use by another slurm-gpud", str(directory)) from None


class StateLock:
    """Held until `close`, or until the process ends, however it does."""

    def __init__(self, directory: Path) -> None:
        """Raises BlockingIOError naming the process that holds it, OSError where it cannot be made."""
        own_directory(directory)
        self._path = directory / "lock"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            why = f"is in use by another slurm-gpud, process {holder or 'unknown'}"
            raise BlockingIOError(error.errno, why, str(directory)) from None
        # On a full disk nobody learns who holds it, which is no reason not to.
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            return

    def is_in_place(self) -> bool:
        """Would another slurm-gpud still meet this lock?"""
        return is_same_file(self._file, self._path)

    def close(self) -> None:
        """Let others in."""
        os.close(self._file)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Is it that open file that stands at `path`?"""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False
