"""Which daemons run on this host, as /proc tells."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_WORDS = 4
"""An interpreter and its options may come before the name."""
_LISTENING = "0A"
_LINK = re.compile(r"socket:\[(\d+)\]")
_START_TIME = 19
"""The field of /proc/PID/stat, from the first behind the name on: when it was started, in ticks of uptime."""


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A daemon that runs here."""

    directory: Path
    """What /proc has of it."""
    words: list[str]
    """Its command line."""
    age_s: float | None
    """For how long; None where /proc does not tell."""

    @property
    def uid(self) -> int | None:
        """Return the uid that it runs as; None if it has ended."""
        try:
            return self.directory.stat().st_uid
        except OSError:
            return None

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal (SIGSTOP) stopped it."""
        try:
            fields = (self.directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return False
        return fields[:1] in (["T"], ["t"])

    def option(self, name: str) -> str | None:
        """Return the value of an option on its command line, `name VALUE` or `name=VALUE`."""
        for word, following in itertools.pairwise([*self.words, ""]):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None


def daemons(proc: Path, name: str) -> list[list[str]]:
    """The command lines of every process of that name that runs here."""
    return [process.words for process in running(proc, name)]


def running(proc: Path, name: str) -> list[DaemonProcess]:
    """Every process of that name that runs here, those of containers left out: they are another machine's."""
    found = []
    for process in proc.glob("[0-9]*"):
        try:
            words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")]
        except OSError:
            continue  # it has ended meanwhile
        if any(Path(word).stem == name for word in words[:_WORDS]) and not _is_contained(process):
            found.append(DaemonProcess(process, words, _age_s(proc, process)))
    return found


def ports(processes: Iterable[DaemonProcess]) -> list[int]:
    """Return the TCP ports at which they listen; none if the caller may not see them."""
    found: set[int] = set()
    for process in processes:
        inodes = set(_sockets(process.directory))
        for name in ("tcp", "tcp6"):
            try:
                lines = (process.directory / "net" / name).read_text().splitlines()[1:]
            except OSError:
                continue
            for fields in map(str.split, lines):
                if fields[3] == _LISTENING and fields[9] in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def _sockets(process: Path) -> Iterator[str]:
    """Yield the inodes of its sockets."""
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return  # another user's, or it has ended
    for link in links:
        try:
            match = _LINK.fullmatch(str(link.readlink()))
        except OSError:
            continue
        if match is not None:
            yield match[1]


def variable(process: DaemonProcess, name: str) -> str | None:
    """What it has of that name in its environment; raises PermissionError where it is another user's."""
    try:
        entries = (process.directory / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended meanwhile
    found = (os.fsdecode(entry).partition("=") for entry in entries)
    return next((value for key, _, value in found if key == name), None)


def _is_contained(process: Path) -> bool:
    """Whether it has a process id in a namespace below this one, as all in a container have."""
    try:
        status = (process / "status").read_text(errors="replace")
    except OSError:
        return False  # it has ended meanwhile, or this /proc does not tell
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(ids) > 1


def _age_s(proc: Path, process: Path) -> float | None:
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        uptime_s = float((proc / "uptime").read_text().split()[0])
        return max(0.0, uptime_s - int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
