"""Manage one process of slurm_gpu.node.gpu.reader: its pipes, its results, and its end."""

from __future__ import annotations

import json
import logging
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu.errors import NvmlError
from slurm_gpu.files.source_root import SOURCE_ROOT
from slurm_gpu.node.gpu.reading import ASKS_NONE, PROGRESS_BYTES, DeviceProperties, Reading, reading_of

log = logging.getLogger(__name__)
_Built = TypeVar("_Built")

# Python runs without `site`, which takes 1 MB; PYTHONPATH therefore has to list the imported packages.
COMMAND = (sys.executable, "-S", "-P", "-m", "slurm_gpu.node.gpu.reader")
# Maximum wait for the exit of the process after it has closed its pipe.
_ENDS_WITHIN_S = 0.1
_LEVELS = {3: logging.ERROR, 4: logging.WARNING, 6: logging.INFO, 7: logging.DEBUG}


class ReaderFailedError(Exception):
    """The process has ended or sent invalid data."""


class ReaderChild:
    """A process that calls NVML; it first searches for all devices, or only for those at index `only`.

    `found` contains the devices by NVML's index of the GPU; it is complete once `ready` is true. `followed`
    contains the readings that the process made by itself and sent, each with the device's UUID. `unfollowed`
    is true if such readings ended because a device did not answer. The constructor raises NvmlError if the
    NVML binding is missing, and OSError if the process cannot be started.
    """

    def __init__(self, leave_out: Collection[int] = (), only: int | None = None) -> None:
        # Shared memory to which the process writes the index of the GPU in its current call.
        file = os.memfd_create("progress", os.MFD_CLOEXEC)
        os.ftruncate(file, PROGRESS_BYTES)
        self._progress = mmap.mmap(file, PROGRESS_BYTES)
        self._progress[:] = ASKS_NONE.to_bytes(PROGRESS_BYTES)
        arguments = [json.dumps(argument) for argument in (os.getpid(), sorted(leave_out), only, file)]
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[file],
            env={**os.environ, "PYTHONPATH": _path()},
        )
        os.close(file)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._messages: deque[list[Any]] = deque()
        self.followed: list[tuple[str, Reading]] = []
        self.unfollowed = False
        self._pending = b""
        self._exception: str | None = None
        self._only = only
        self._leave_out: Collection[int] = leave_out
        self._received_s = time.monotonic()
        self.count: int | None = None
        self.found: dict[int, list[DeviceProperties]] = {}
        self.ready = False

    @property
    def pid(self) -> int:
        """Return the process ID."""
        return self._process.pid

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last request or message."""
        return time.monotonic() - self._received_s

    @property
    def next_index(self) -> int | None:
        """Return the index that the process reports next, or None while the number of GPUs is unknown."""
        if self._only is not None or self.count is None:
            return self._only
        rest = (i for i in range(self.count) if i not in self.found and i not in self._leave_out)
        return next(rest, None)

    @property
    def index_in_call(self) -> int | None:
        """Return NVML's index of the GPU in the current call, or in the call that ended the process."""
        index = int.from_bytes(self._progress[:])
        return None if index == ASKS_NONE else index

    def find(self, leave_out: Collection[int]) -> None:
        """Start another search for devices; raise ReaderFailedError if the process fails."""
        self._leave_out = frozenset(leave_out)
        self.count, self.found, self.ready = None, {}, False
        self.ask("find", sorted(leave_out))

    def advance(self, timeout_s: float) -> bool:
        """Receive search results for at most `timeout_s`; return whether all have arrived.

        Raise ReaderFailedError if the process fails, or NvmlError if it reports that the driver does not
        work.
        """
        end_s = time.monotonic() + timeout_s
        while not self.ready:
            message = self.receive(end_s - time.monotonic())
            match message:
                case None:
                    return False
                case ["count", int(count)]:
                    self.count = count
                case ["gpu", int(index), list(rows)]:
                    self.found[index] = [built(DeviceProperties, row) for row in rows]
                case ["end"]:
                    self.ready = True
                case ["error", str(text)]:
                    raise NvmlError(text)
                case _:
                    raise ReaderFailedError(f"the NVML reader sent invalid data: {message!r}")
        return True

    def ask(self, *message: Any) -> None:
        """Send a command; raise ReaderFailedError if the process has ended."""
        self._received_s = time.monotonic()
        self.unfollowed = False
        try:
            self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ReaderFailedError(f"the NVML reader has ended{self._cause()}: {error.strerror}") from error

    def receive(self, timeout_s: float) -> list[Any] | None:
        """Return the next message, or None after the timeout. Raise ReaderFailedError on failure."""
        end_s = time.monotonic() + timeout_s
        while True:
            while self._messages:
                message = self._messages.popleft()
                match message:
                    case ["cause", str(text)]:
                        self._exception = text
                    case ["log", priority, text]:
                        log.log(_LEVELS.get(priority, logging.WARNING), "%s", text)
                    case ["followed", str(uuid), list(row)]:
                        self.followed.append((uuid, built(reading_of, [row])))
                    case ["unfollowed"]:
                        self.unfollowed = True
                    case _:
                        return message
            if not self._poll.poll(max(0.0, end_s - time.monotonic()) * 1000):
                return None
            data = os.read(self._stdout.fileno(), 1 << 16)
            if not data:
                raise ReaderFailedError(f"the NVML reader has ended{self._cause()}")
            self._received_s = time.monotonic()
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                self._messages.extend(_decode(line))

    def _cause(self) -> str:
        """Return the reason why the process ended, if known: its exception, signal or exit status."""
        try:
            status = self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            status = None
        if self._exception is not None:
            return f" ({self._exception})"
        if status is None:
            return ""
        return f" ({signal.Signals(-status).name})" if status < 0 else f" (exit status {status})"

    def kill(self) -> None:
        """Kill the process; `is_gone` remains false while the process is stuck in the driver."""
        self._process.kill()
        self._stdin.close()
        self._stdout.close()

    def is_gone(self, wait_s: float = 0.0) -> bool:
        """Wait at most `wait_s` for the process to end; return whether it has ended."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def _path() -> str:
    """Return the process's PYTHONPATH; raise NvmlError if the NVML binding is missing."""
    binding = find_spec("pynvml")
    if binding is None or binding.origin is None:
        raise NvmlError(
            "NVML: the Python package nvidia-ml-py is not installed; install the package slurm-gpu-node "
            "(or: pip install 'slurm-gpu[node]')"
        )
    return os.pathsep.join([str(SOURCE_ROOT), str(Path(binding.origin).parent)])


def _decode(line: bytes) -> list[list[Any]]:
    """Return the messages in a line; raise ReaderFailedError if the line is malformed."""
    try:
        messages = json.loads(line)
    except ValueError:
        messages = None
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise ReaderFailedError(f"the NVML reader sent invalid data: {line[:80]!r}")
    return messages


def built(make: Callable[..., _Built], values: Sequence[Any]) -> _Built:
    """Return `make(*values)`; raise ReaderFailedError if `make` does not accept the values."""
    try:
        return make(*values)
    except (TypeError, ValueError) as error:
        raise ReaderFailedError(f"the NVML reader sent invalid data: {str(values)[:80]}: {error}") from error


def _is_message(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and (value[0] != "log" or len(value) == 3)
