"""Slurm's number of a GPU → its device file → its minor number → its UUID.

SLURM_JOB_GPUS counts the `Name=gpu` lines in the order of `slurmd -G`, which is neither the minor number
nor NVML's index: gres.conf may list files in any order, and AutoDetect has an order of its own.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_gpu.errors import SlurmError
from slurm_gpu.node.reading import Facts

log = logging.getLogger(__name__)

_LINE = re.compile(r"\bGres Name=gpu\b.*?\bFile=(?P<files>\S+)")
_TRAILING_NUMBER = re.compile(r"(\d+)$")
_BRACKETS = re.compile(r"^(?P<head>[^\[]*)\[(?P<ranges>[\d,-]+)\](?P<tail>.*)$")
_DEADLINE_S = 20.0

RunSlurmd = Callable[[Sequence[str]], str]


def run_slurmd(command: Sequence[str]) -> str:
    """Standard output and error together (-G prints on the latter); raises SlurmError when it fails."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{' '.join(command)}: {error}") from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise SlurmError(f"{' '.join(command)}: exit status {done.returncode}: {text.strip()[-300:]}")
    return text


def parse_files(text: str) -> list[str]:
    """Device files by position, from the output of `slurmd -G`."""
    found: list[str] = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is not None and match["files"] != "(null)":
            found.extend(_expand(match["files"]))
    return found


def _expand(files: str) -> Iterator[str]:
    """Names in "/dev/nvidia[0-2,5]" or "/dev/nvidia0,/dev/nvidia1"."""
    match = _BRACKETS.match(files)
    if match is None:
        yield from files.split(",")
        return
    for part in match["ranges"].split(","):
        first, _, last = part.partition("-")
        width = len(first)
        for number in range(int(first), int(last or first) + 1):
            yield f"{match['head']}{number:0{width}d}{match['tail']}"


def minor_of(file: str) -> int | None:
    """The minor number of a device file; by its name where there is no such device here."""
    try:
        status = Path(file).stat()
    except OSError:
        status = None
    if status is not None and stat.S_ISCHR(status.st_mode):
        return os.minor(status.st_rdev)
    match = _TRAILING_NUMBER.search(file)
    return int(match[1]) if match else None


class GresOrder:
    """Which UUID each position is; asks slurmd again when Slurm's configuration has changed."""

    def __init__(
        self, node: str | None, run: RunSlurmd = run_slurmd, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._command = ("slurmd", "-G", *(("-N", node) if node is not None else ()))
        self._run = run
        directories = [Path("/etc/slurm"), Path("/run/slurm/conf")]
        if environ.get("SLURM_CONF"):
            directories = [Path(environ["SLURM_CONF"]).parent]
        self._watched = [d / name for d in directories for name in ("slurm.conf", "gres.conf")]
        self._stamp: object = None
        self._files: list[str] = []
        self._failing = False
        self.assumed = False

    def uuids(self, positions: Sequence[int], devices: Sequence[Facts]) -> Mapping[int, str]:
        """The UUID at each position; a position is absent where no device of `devices` can be told.

        While slurmd cannot be asked none can: a guess might charge another job's GPU. Where it answers but
        names no device files, the order is that of the minor numbers, and `assumed` is set.
        """
        stamp = tuple(_modified(path) for path in self._watched)
        if stamp != self._stamp or any(position >= len(self._files) for position in positions):
            try:
                self._files = parse_files(self._run(self._command))
            except SlurmError as error:
                if not self._failing:
                    log.warning("%s; GPUs cannot be told from each other until it answers", error)
                self._failing = True
                return {}
            self._stamp, self._failing = stamp, False
            self.assumed = not self._files
        by_minor = {device.minor: device.uuid for device in devices if device.minor is not None}
        minors: list[int | None] = [minor_of(file) for file in self._files] or [*sorted(by_minor)]
        ordered = [None if minor is None else by_minor.get(minor) for minor in minors]
        found = {p: ordered[p] for p in positions if p < len(ordered)}
        return {position: uuid for position, uuid in found.items() if uuid is not None}


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
