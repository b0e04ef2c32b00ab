"""Find the options that `slurmd -G` needs for a dynamic node (`slurmd -Z`).

slurm.conf does not list such a node, so its options are read from the command line of its slurmd.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Options of slurmd 22.05 to 26.05: options with a value, and flags, which can be combined as in -DZ.
_WITH_VALUE = (
    *("-d", "-f", "-L", "-n", "-N", "--authinfo", "--ca-cert-file", "--conf", "--conf-server", "--extra"),
    *("--instance-id", "--instance-type", "--parameters"),
)
_FLAGS = ("-b", "-c", "-C", "-D", "-G", "-M", "-s", "-v", "-Z")


def running_slurmds(proc: Path = PROC) -> Iterator[tuple[int, list[str]]]:
    """Yield the pid and command line of each slurmd that root or this user runs."""
    for process in proc.glob("[0-9]*"):
        try:
            # Any user can name a process slurmd.
            if process.stat().st_uid not in (0, os.geteuid()):
                continue
            words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
        except OSError:
            continue  # the process ended
        if words and Path(words[0]).name == "slurmd":
            yield int(process.name), words


@dataclass(frozen=True, slots=True)
class _Slurmd:
    """The slurmd of a dynamic node.

    `started`, in clock ticks after boot, distinguishes it from a later process with the same pid. When
    `slurmd -G` is called with `options`, it describes the same node.
    """

    pid: int
    started: bytes
    options: tuple[str, ...]


class DynamicNode:
    """Reads the options of a dynamic node from its running slurmd; methods are thread-safe."""

    def __init__(self, node: str | None, proc: Path = PROC, host: str = os.uname().nodename) -> None:
        """`node` is the node's name in Slurm, or None if this host runs only one slurmd."""
        self._node, self._proc, self._host = node, proc, host
        self._slurmd: _Slurmd | None = None
        self._n_changes = 0

    def options(self) -> tuple[str, ...]:
        """Return the options that `slurmd -G` needs for this node, or () if slurm.conf lists it."""
        if self._slurmd is None or not self._runs(self._slurmd):
            self._slurmd = self._find() or self._slurmd
        return () if self._slurmd is None else self._slurmd.options

    def n_changes(self) -> int:
        """Return how many times slurmd has restarted with different options; 0 if slurm.conf lists the node.

        /proc is searched only after a known slurmd has ended.
        """
        before = self._slurmd
        if before is not None and not self._runs(before) and self.options() != before.options:
            self._n_changes += 1
        return self._n_changes

    def _find(self) -> _Slurmd | None:
        for pid, words in running_slurmds(self._proc):
            options = _options(words)
            if options is None:
                continue
            name = options.N or self._host
            if self._node in (None, name, name.partition(".")[0]) and (started := self._started(pid)):
                more = () if options.conf is None else ("--conf", options.conf)
                named = () if options.N is None else ("-N", options.N)
                return _Slurmd(pid, started, ("-Z", *named, *more))
        return None

    def _runs(self, slurmd: _Slurmd) -> bool:
        return self._started(slurmd.pid) == slurmd.started

    def _started(self, pid: int) -> bytes | None:
        try:
            # The process name, in parentheses, may contain blanks.
            return (self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19]
        except (OSError, IndexError):
            return None


def _options(words: list[str]) -> argparse.Namespace | None:
    """Return the parsed options of slurmd's command line, or None if it does not contain -Z."""
    # Abbreviations are disabled, because argparse exits on an ambiguous abbreviation.
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for option in _WITH_VALUE:
        parser.add_argument(option)
    for flag in _FLAGS:
        parser.add_argument(flag, action="store_true")
    try:
        options, _ = parser.parse_known_args(words[1:])
    except argparse.ArgumentError:
        return None
    return options if options.Z else None
