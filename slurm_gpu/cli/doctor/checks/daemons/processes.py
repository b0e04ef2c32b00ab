"""Find the daemons that run on this host."""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

# In a command line, an interpreter and its options may precede the name of the daemon.
_WORDS = 4


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A process of a daemon on this host."""

    process: psutil.Process
    words: list[str]
    """The command line."""

    @property
    def pid(self) -> int:
        """Return the process ID."""
        return self.process.pid

    @property
    def age_s(self) -> float:
        """Return how long the process has run, in seconds."""
        return max(0.0, time.time() - self.process.create_time())

    @property
    def uid(self) -> int | None:
        """Return the uid that the process runs as; None if the process has ended."""
        try:
            return int(self.process.uids().effective)
        except psutil.NoSuchProcess:
            return None

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal (SIGSTOP) stopped the process."""
        try:
            return self.process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.NoSuchProcess:
            return False

    def option(self, name: str) -> str | None:
        """Return the value of a command-line option, given as `name VALUE` or `name=VALUE`."""
        for word, following in itertools.pairwise([*self.words, ""]):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def variable(self, name: str) -> str | None:
        """Return an environment variable of the process; raise PermissionError for another user's process."""
        try:
            return self.process.environ().get(name)
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied as error:
            raise PermissionError(errno.EACCES, error.msg, f"/proc/{self.pid}/environ") from error


def running(name: str) -> list[DaemonProcess]:
    """Return every process of that name on this host, except those in containers."""
    found = []
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            words = process.cmdline()
        except psutil.Error:
            continue  # the process has ended
        if any(Path(word).stem == name for word in words[:_WORDS]) and not _is_contained(pid):
            found.append(DaemonProcess(process, words))
    return found


def ports(processes: Iterable[DaemonProcess]) -> list[int]:
    """Return the TCP ports on which the processes listen; none if the caller may not see them."""
    found: set[int] = set()
    for one in processes:
        try:
            sockets = one.process.net_connections("tcp")
        except psutil.Error:
            continue  # the process belongs to another user, or has ended
        found |= {each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN}
    return sorted(found)


def _is_contained(pid: int) -> bool:
    """Return whether a process also has an ID in a nested PID namespace, as processes in containers do."""
    try:
        status = Path(psutil.PROCFS_PATH, str(pid), "status").read_text(errors="replace")
    except OSError:
        return False  # the process has ended
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(ids) > 1
