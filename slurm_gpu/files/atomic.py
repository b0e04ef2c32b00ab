"""Write files either completely or not at all, even on a full disk or after a kill -9 or a power cut."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

_UNFINISHED = "unfinished"


def write_whole(
    path: Path, text: str, *, mode: int = 0o600, owner_uid: int | None = None, durable: bool = True
) -> None:
    """Replace a file with this text atomically; if root writes it, the file belongs to `owner_uid`.

    If `durable` is true, wait until the text is on disk; otherwise, a power cut can destroy it. Raise
    OSError on failure.
    """
    with whole_file(path, durable=durable) as fresh:
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(mode)
        if owner_uid is not None and os.geteuid() == 0:
            os.chown(fresh, owner_uid, -1)


@contextlib.contextmanager
def whole_file(path: Path, like: str | None = None, *, durable: bool = True) -> Iterator[Path]:
    """Yield a file of mode 0600 that replaces `path` once its contents are on disk.

    After a failure, this file is removed and `path` is unchanged. Files that killed processes left for
    `path`, or for names that match the pattern `like`, are also removed. Raise OSError on failure, or if
    `path` is a device, a pipe or a socket.
    """
    if not _may_be_replaced(path):
        raise OSError(errno.EINVAL, "is a device, a pipe or a socket, not a file", str(path))
    for left in path.parent.glob(f".*.{_UNFINISHED}"):
        name = left.name.removeprefix(".").rsplit(".", 2)[0]
        same = name == path.name or (like is not None and fnmatch.fnmatchcase(name, like))
        if same and not _is_at_work(left):
            left.unlink(missing_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{_UNFINISHED}")
    try:
        # Never follow an existing symbolic link.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            yield unfinished
            if durable:
                sync(unfinished)
            unfinished.replace(path)
            if durable:
                sync(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        if error.filename in (unfinished, str(unfinished)):
            error.filename = str(path)  # the name that the caller uses
        raise


def _may_be_replaced(path: Path) -> bool:
    """Return whether the path may be replaced; this is false for devices and links such as /dev/stdout."""
    if path.is_symlink() and path.readlink().is_relative_to("/proc"):
        return False
    return path.is_file() or path.is_dir() or not path.exists()  # replacing a directory fails later


def _is_at_work(unfinished: Path) -> bool:
    """Return whether another running process is writing this file."""
    pid = unfinished.name.split(".")[-2]
    return pid != str(os.getpid()) and Path("/proc", pid).exists()


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a directory, is on disk; raise OSError on failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
