"""Wait for hook files, replies and signals; call Linux's inotify through ctypes."""

from __future__ import annotations

import ctypes
import logging
import os
import select
from pathlib import Path

log = logging.getLogger(__name__)

_IN_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_IN_MOVED_TO = 0x80
_IN_DELETE_SELF = 0x400


class DirectoryWaiter:
    """Ends a wait when a file is moved into a directory, even after the directory has been recreated."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._wake_read, self._wake_write = os.pipe2(_IN_CLOEXEC_NONBLOCK)
        self._inotify = _inotify_init()
        self._watched_inode: int | None = None
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Return on an event (if inotify is available), when `wake` is called, or after the timeout."""
        self._watch()
        ready = self._poll.poll(max(0.0, timeout_s) * 1000)
        for descriptor, _ in ready:
            # The content of the event does not matter, since the caller checks everything.
            os.read(descriptor, 65536)
            if descriptor == self._inotify:
                self._watched_inode = None  # the directory may have been removed

    def wake(self) -> None:
        """End a wait; this can be called from any thread and from signal handlers."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # the pipe is already full of wake-ups

    def _watch(self) -> None:
        if self._inotify is None:
            return
        try:
            inode = self._directory.stat().st_ino
        except OSError:
            self._watched_inode = None
            return
        if inode == self._watched_inode:
            return
        mask = _IN_MOVED_TO | _IN_DELETE_SELF
        if _libc().inotify_add_watch(self._inotify, os.fsencode(self._directory), mask) < 0:
            log.warning("inotify on %s: %s", self._directory, os.strerror(ctypes.get_errno()))
        self._watched_inode = inode


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _inotify_init() -> int | None:
    descriptor = int(_libc().inotify_init1(_IN_CLOEXEC_NONBLOCK))
    if descriptor < 0:
        log.warning("inotify: %s; hook files are read with a short delay", os.strerror(ctypes.get_errno()))
        return None
    return descriptor
