"""Read the event files of the prolog and epilog hooks (docs/contracts.md, section 6).

Only root can write to the directory, but the values come from the environments of jobs, so their format is
checked. Invalid files are moved to `rejected/` next to the directory.
"""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from slurm_gpu.clock import Clock, wall_ahead_s
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.node.allocation.state_lock import lock_directory, own_directory

log = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024
MAX_POSITIONS = 1024
# Rejected files use memory, because the run directory is on a tmpfs.
MAX_REJECTED = 1000
_UPTIME_STEP_S = 0.01
_ROUNDING_S = 1e-4
_FILE_NAME = re.compile(r"(?P<at_ns>\d{1,19})-(?P<job_id>\d{1,18})-(?P<kind>prolog|epilog)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_POSITIONS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.:+/-]{1,255}", re.ASCII)


class HookFileError(SlurmGpuError):
    """A file in the event directory is invalid; the message contains the reason."""


class HookKind(StrEnum):
    """The hook that wrote the event."""

    PROLOG = "prolog"
    EPILOG = "epilog"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """The start or end of a job's allocation on this node.

    `at_s` is wall-clock time; `uptime_s` is Clock.monotonic() during the boot `boot_id`. `positions` are
    Slurm's GPU numbers (slurm_gpu.node.allocation.gres), empty for a job without GPUs.
    """

    path: Path
    kind: HookKind
    at_s: float
    uptime_s: float
    boot_id: str
    job_id: int
    restart: int
    positions: tuple[int, ...]
    uid: int | None
    cluster: str | None
    node: str | None
    sluid: str | None


def read_event(path: Path) -> HookEvent:
    """Read one event file; raise HookFileError if it is invalid."""
    name = _FILE_NAME.fullmatch(path.name)
    if name is None:
        raise HookFileError("the name is not TIME-JOBID-prolog or TIME-JOBID-epilog")
    try:
        text, written_s = _content(path)
    except OSError as error:
        raise HookFileError(f"cannot be read: {error.strerror}") from error
    values = _values(text)
    if values.get("EVENT") != name["kind"] or values.get("SLURM_JOB_ID") != name["job_id"]:
        raise HookFileError("the content does not match the file name")
    at_ns, restart = int(name["at_ns"]), _number("SLURM_JOB_RESTART_COUNT", values)
    return HookEvent(
        path=path,
        kind=HookKind(name["kind"]),
        at_s=at_ns / 1e9 if at_ns else written_s,
        uptime_s=float(_matching("UPTIME_S", values, _DECIMAL)),
        boot_id=_matching("BOOT_ID", values, _NAME),
        job_id=int(name["job_id"]),
        restart=0 if restart is None else restart,
        positions=parse_positions(values.get("SLURM_JOB_GPUS", "")),
        uid=_number("SLURM_JOB_UID", values),
        cluster=_optional("SLURM_CLUSTER_NAME", values),
        node=_optional("SLURMD_NODENAME", values),
        sluid=_optional("SLURM_JOB_SLUID", values),
    )


def parse_positions(text: str) -> tuple[int, ...]:
    """Parse a value such as "0,1", "0-3" or "" of SLURM_JOB_GPUS; raise HookFileError if it is invalid."""
    positions: list[int] = []
    for part in text.split(",") if text else ():
        match = _POSITIONS.fullmatch(part)
        if match is None:
            raise HookFileError(f"SLURM_JOB_GPUS={text[:80]!r} is not a list of positions")
        first = int(match[1])
        positions.extend(range(first, int(match[2] or first) + 1))
    if len(positions) > MAX_POSITIONS or len(set(positions)) != len(positions):
        raise HookFileError(f"SLURM_JOB_GPUS={text[:80]!r} lists a GPU twice or too many GPUs")
    return tuple(positions)


def _content(path: Path) -> tuple[str, float]:
    # Do not block on a FIFO, and do not follow a link to one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise HookFileError("not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise HookFileError(f"longer than {MAX_BYTES} bytes")
    return data.decode("utf-8", "surrogateescape"), status.st_mtime


def _values(text: str) -> Mapping[str, str]:
    if not text.endswith("\n"):
        raise HookFileError("the last line is truncated")
    values: dict[str, str] = {}
    for line in text[:-1].split("\n"):
        key, equals, value = line.partition("=")
        if not equals or key in values:
            raise HookFileError(f"{line[:80]!r} is not a KEY=value line, or repeats a key")
        values[key] = value
    return values


def _matching(key: str, values: Mapping[str, str], pattern: re.Pattern[str]) -> str:
    value = values.get(key, "")
    if pattern.fullmatch(value) is None:
        raise HookFileError(f"{key}={value[:80]!r} is invalid")
    return value


def _number(key: str, values: Mapping[str, str]) -> int | None:
    return int(_matching(key, values, _NUMBER)) if values.get(key) else None


def _optional(key: str, values: Mapping[str, str]) -> str | None:
    return _matching(key, values, _NAME) if values.get(key) else None


class HookEvents(Protocol):
    """A source of events that keeps each event until `remove` is called, so that crashes lose no events."""

    def take(self) -> list[HookEvent]:
        """Return new events in chronological order."""

    def remove(self, event: HookEvent) -> None:
        """Remove an event that has been stored elsewhere."""


class HookDirectory:
    """The directory of event files; each file remains until `remove` is called, so crashes lose no events."""

    def __init__(self, run_dir: Path, node: str, clock: Clock) -> None:
        self._clock = clock
        self.jobs = run_dir / "jobs"
        self._rejected = run_dir / "rejected"
        self._node = node
        self._seen: set[str] = set()

    def create(self) -> None:
        """Create the directory with mode 0700; raise OSError on failure, or if another user owns it."""
        own_directory(self.jobs)

    def claim(self) -> None:
        """Lock the directory until this process ends; raise BlockingIOError if another process has the lock.

        Without the lock, two processes would each read only some of the events, and neither would have all
        allocations.
        """
        lock_directory(self.jobs)

    def take(self) -> list[HookEvent]:
        """Return new events in chronological order, even if the wall clock has been set."""
        events = list(self._new_events())
        boots: dict[str, float] = {}
        for event in events:
            boots[event.boot_id] = min(event.at_s, boots.get(event.boot_id, event.at_s))
        boots[self._clock.boot_id()] = math.inf
        return sorted(events, key=lambda event: (boots[event.boot_id], event.uptime_s, event.at_s))

    def _new_events(self) -> Iterator[HookEvent]:
        try:
            # Files whose names begin with a dot are still being written.
            names = [name for name in os.listdir(self.jobs) if not name.startswith(".")]  # noqa: PTH208
        except FileNotFoundError:
            self.create()
            return
        self._seen &= set(names)
        for name in names:
            if name in self._seen:
                continue
            path = self.jobs / name
            try:
                event = self._read(path)
            except HookFileError as error:
                self._reject(path, error)
                continue
            self._seen.add(name)
            yield event

    def _read(self, path: Path) -> HookEvent:
        event = read_event(path)
        if event.node not in (None, self._node):
            raise HookFileError(f"the event is for node {event.node}, but this is node {self._node} (--node)")
        return replace(event, uptime_s=self._finer(event))

    def _finer(self, event: HookEvent) -> float:
        """Return the event's uptime, refined by the wall clock unless the clock has been set since."""
        if event.boot_id != self._clock.boot_id():
            return event.uptime_s
        by_wall_s = event.at_s - wall_ahead_s(self._clock)
        late_s = by_wall_s - event.uptime_s
        # If the difference is larger, `date` started late on a busy node, or the clock was set.
        within = -_ROUNDING_S <= late_s <= _UPTIME_STEP_S
        return by_wall_s if within else event.uptime_s + _UPTIME_STEP_S / 2

    def remove(self, event: HookEvent) -> None:
        """Remove the file of an event that has been stored elsewhere."""
        event.path.unlink(missing_ok=True)

    def _reject(self, path: Path, why: HookFileError) -> None:
        try:
            self._rejected.mkdir(mode=0o700, exist_ok=True)
            if len(os.listdir(self._rejected)) < MAX_REJECTED:  # noqa: PTH208
                log.warning("%s: %s; moved to %s", path, why, self._rejected)
                path.rename(self._rejected / path.name)
            else:
                log.warning("%s: %s; removed, because %s is full", path, why, self._rejected)
                path.unlink()
        except OSError as error:
            log.warning("%s: %s; moving or removing it failed: %s", path, why, error)
            self._seen.add(path.name)
