"""Lock a state directory for one slurm-gpud; the error of a second slurm-gpud names the first."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path


def own_directory(directory: Path) -> None:
    """Create the directory, or check that this user owns it, and deny other users access.

    Raise OSError if another user owns it, because that user could have written its content.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is a link; slurm-gpud requires a directory", str(directory))
    if status.st_uid != os.geteuid():
        why = f"belongs to uid {status.st_uid}, but slurm-gpud runs as uid {os.geteuid()}"
        raise PermissionError(errno.EPERM, why, str(directory))
    directory.chmod(0o700)


def lock_directory(directory: Path) -> None:
    """Lock the directory itself until this process ends; raise BlockingIOError if it is locked."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BlockingIOError(error.errno, "is in use by another slurm-gpud", str(directory)) from None


class StateLock:
    """A lock that lasts until `close` is called or the process ends."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. If another process has it, raise BlockingIOError, which names that process."""
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
        # On a full disk the lock is kept without the process ID.
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            return

    def is_in_place(self) -> bool:
        """Return whether the locked file is still at its path; otherwise, the lock has no effect."""
        return is_same_file(self._file, self._path)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether `path` refers to the file that is open as `descriptor`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False
