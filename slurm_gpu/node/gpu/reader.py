"""Call NVML for slurm-gpud in a separate process.

slurm-gpud starts this process as `python -m slurm_gpu.node.gpu.reader PARENT LEAVE_OUT ONLY PROGRESS`.

slurm-gpud kills the process if a call hangs in the driver, because there is no other remedy. The process
therefore keeps no important state, imports little, and never outlives slurm-gpud. Both processes send lines
of JSON. The reader receives these commands:

    ["find", [excluded index, …]]                 find devices; also done at the start
    ["read", [request, …]]                        read devices
    ["follow", [[request, …], every_s, until_s]]  read devices at multiples of `every_s` before `until_s`,
                                                  until the next command

Each line that the reader sends is a list of these messages:

    ["log", priority, text]          a message for the log, at any time
    ["cause", text]                  the exception with which the reader ends
    ["count", n]                     "find": the number of GPUs; ["gpu", index, [facts, …]] for each and
                                     ["end"] follow
    ["error", text]                  "find": the driver does not work
    ["reading", uuid, reading]       "read": one per request, or else ["failure", uuid, kind, why];
                                     ["end", [xid, …]] follows
    ["followed", uuid, reading]      "follow": a reading
    ["unfollowed"]                   "follow": the readings end, because a device did not answer

The answers to "read" are sent together, unless they take too long, so that slurm-gpud wakes up only once. The
shared memory file PROGRESS contains the index of the GPU in the current call.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu import lean_binding  # noqa: F401  # before modules that import pynvml
from slurm_gpu.node.gpu.nvml import NvmlReader
from slurm_gpu.node.gpu.nvml_device import since_boot_s
from slurm_gpu.node.gpu.reading import ASKS_NONE, PROGRESS_BYTES, Failure, Reading, ReadRequest

# Maximum time that an answer waits to be sent together with later answers.
PATIENCE_S = 0.1
_PR_SET_PDEATHSIG = 1
_MAX_CAUSE = 500


class ReplyWriter:
    """Writes messages, one line per flush."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        self._waiting: list[Sequence[Any]] = []

    def add(self, *message: Any) -> None:
        """Add a message to the next flush."""
        self._waiting.append(message)

    def flush(self) -> None:
        """Write all pending messages."""
        if not self._waiting:
            return
        data = memoryview(self._encode(self._waiting).encode() + b"\n")
        self._waiting.clear()
        while data:
            data = data[os.write(self._file, data) :]

    def say(self, *message: Any) -> None:
        """Write a message immediately."""
        self.add(*message)
        self.flush()


class Commands:
    """Reads commands, one per line."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)
        self._pending = b""

    def next(self, timeout_s: float) -> Any:
        """Return the next command, or None after the timeout. Raise EOFError at the end of the input."""
        while b"\n" not in self._pending:
            # Round up, so that the process does not wake up too early.
            if not self._poll.poll(None if timeout_s == math.inf else math.ceil(timeout_s * 1000)):
                return None
            data = os.read(self._file, 1 << 16)
            if not data:
                raise EOFError
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)


class Following(NamedTuple):
    """Periodic readings when Clock.monotonic() is a multiple of `every_s`, as for slurm-gpud's samples."""

    requests: Sequence[ReadRequest]
    every_s: float
    until_s: float

    def rest_s(self) -> float:
        """Return the seconds until the next reading."""
        now_s = since_boot_s()
        next_s = (now_s // self.every_s + 1) * self.every_s
        return next_s - now_s if next_s < self.until_s else math.inf


def main() -> None:
    """Execute commands until standard input ends."""
    parent, leave_out, only, progress_file = (json.loads(argument) for argument in sys.argv[1:5])
    _die_with(parent)
    # Signals from a terminal or systemd are for slurm-gpud, which takes a last sample.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = ReplyWriter(os.dup(1))
    os.dup2(2, 1)  # keep output of libraries out of the answers
    progress = mmap.mmap(progress_file, PROGRESS_BYTES)
    try:
        _serve(leave_out, only, answers, progress)
    except Exception as error:
        answers.say("cause", f"{type(error).__name__}: {error}"[:_MAX_CAUSE])
        raise


def _serve(leave_out: Collection[int], only: int | None, answers: ReplyWriter, progress: mmap.mmap) -> None:
    reader = NvmlReader(lambda priority, text: answers.say("log", priority, text))
    _find(reader, leave_out, only, answers)
    commands = Commands(0)
    following: Following | None = None
    while True:
        try:
            command = commands.next(math.inf if following is None else following.rest_s())
        except EOFError:
            return
        if command is None:
            if following is not None and not _follow(reader, following.requests, answers, progress):
                following = None
            continue
        what, argument = command
        following = None
        if what == "find":
            _find(reader, argument, None, answers)
        elif what == "follow":
            requests, every_s, until_s = argument
            following = Following([ReadRequest(*fields) for fields in requests], every_s, until_s)
        else:
            _read(reader, [ReadRequest(*fields) for fields in argument], answers, progress)


def _find(reader: NvmlReader, leave_out: Collection[int], only: int | None, answers: ReplyWriter) -> None:
    try:
        count = reader.start()
        answers.say("count", count)
        if only is not None:
            leave_out = set(range(count)) - {only}
        for index, found in reader.find(leave_out):
            answers.say("gpu", index, found)
    except NvmlError as error:
        answers.say("error", str(error))
    else:
        answers.say("end")


def _read(
    reader: NvmlReader, requests: Sequence[ReadRequest], answers: ReplyWriter, progress: mmap.mmap
) -> None:
    for uuid, outcome in _outcomes(reader, requests, answers, progress):
        if isinstance(outcome, Failure):
            answers.add("failure", uuid, *outcome)
        else:
            answers.add("reading", uuid, outcome)
    detailed = not requests or any(request.detailed for request in requests)
    answers.say("end", reader.take_xids() if detailed else [])


def _follow(
    reader: NvmlReader, requests: Sequence[ReadRequest], answers: ReplyWriter, progress: mmap.mmap
) -> bool:
    """Read all devices once; return False if one did not answer."""
    for uuid, outcome in _outcomes(reader, requests, answers, progress):
        if isinstance(outcome, Failure):
            answers.say("unfollowed")
            return False
        answers.add("followed", uuid, outcome)
    answers.flush()
    return True


def _outcomes(
    reader: NvmlReader, requests: Sequence[ReadRequest], answers: ReplyWriter, progress: mmap.mmap
) -> Iterator[tuple[str, Reading | Failure]]:
    """Read devices one after another; if that takes too long, send the first answers early."""
    flush_at_s = time.monotonic() + PATIENCE_S
    for request in requests:
        index = reader.index_of(request.uuid)
        progress[:] = (ASKS_NONE if index is None else index).to_bytes(PROGRESS_BYTES)
        outcome = reader.read_one(request)
        progress[:] = ASKS_NONE.to_bytes(PROGRESS_BYTES)
        yield request.uuid, outcome
        if time.monotonic() > flush_at_s:
            answers.flush()
            flush_at_s = time.monotonic() + PATIENCE_S


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main()
