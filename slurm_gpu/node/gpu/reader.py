"""The process that calls NVML for slurm-gpud.

Started as `python -m slurm_gpu.node.gpu.reader PARENT LEAVE_OUT ONLY PROGRESS`.

It may be killed at any time: where a call hangs in the driver, nothing else helps. So it keeps no state that
matters, imports little, and never outlives slurm-gpud. Lines of JSON go both ways. It is told one of

    ["find", [index to leave out, …]]             which it does at the start unasked
    ["read", [request, …]]
    ["follow", [[request, …], every_s, until_s]]  go on reading them at whole multiples of `every_s` before
                                                  `until_s`, unless it is told anything else

Each line that it says is a list of these:

    ["log", priority, text]          at any time
    ["cause", text]                  before it ends: the exception that ends it
    ["count", n]                     then for each index in turn: ["gpu", index, [facts, …]], and ["end"]
    ["error", text]                  instead, where there is no driver
    ["reading", uuid, reading]       for each request in turn, or ["failure", uuid, kind, why]; then
    ["end", [xid, …]]
    ["followed", uuid, reading]      of what it follows
    ["unfollowed"]                   it follows no longer: a device did not answer

The answers to a read come together, unless they take long: slurm-gpud is woken once. Which GPU is being asked
stands in the memory that file PROGRESS shares.
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
from slurm_gpu.node.gpu import lean_binding as leanbinding  # noqa: F401  # before what imports pynvml
from slurm_gpu.node.gpu.nvml import NvmlReader
from slurm_gpu.node.gpu.nvml_device import since_boot_s
from slurm_gpu.node.gpu.reading import ASKS_NONE, PROGRESS_BYTES, Failure, Reading, ReadRequest

# So long answers may wait for others.
PATIENCE_S = 0.1
_PR_SET_PDEATHSIG = 1
_MAX_CAUSE = 500


class ReplyWriter:
    """What goes back, in one line each time it is flushed."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        self._waiting: list[Sequence[Any]] = []

    def add(self, *message: Any) -> None:
        """Say it with the next flush."""
        self._waiting.append(message)

    def flush(self) -> None:
        """Write all that waits."""
        if not self._waiting:
            return
        data = memoryview(self._encode(self._waiting).encode() + b"\n")
        self._waiting.clear()
        while data:
            data = data[os.write(self._file, data) :]

    def say(self, *message: Any) -> None:
        """Say it at once."""
        self.add(*message)
        self.flush()


class Commands:
    """What it is told, line by line."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)
        self._pending = b""

    def next(self, timeout_s: float) -> Any:
        """Wait for one, so long at most; None if none came. Raises EOFError."""
        while b"\n" not in self._pending:
            # Rounded up: it shall not wake up a moment too early.
            if not self._poll.poll(None if timeout_s == math.inf else math.ceil(timeout_s * 1000)):
                return None
            data = os.read(self._file, 1 << 16)
            if not data:
                raise EOFError
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)


class Following(NamedTuple):
    """Reads of its own accord, by the clock that slurm-gpud's looks keep to (Clock.monotonic)."""

    requests: Sequence[ReadRequest]
    every_s: float
    until_s: float

    def rest_s(self) -> float:
        """Time until the next one."""
        now_s = since_boot_s()
        next_s = (now_s // self.every_s + 1) * self.every_s
        return next_s - now_s if next_s < self.until_s else math.inf


def main() -> None:
    """Serve until standard input ends."""
    parent, leave_out, only, progress_file = (json.loads(argument) for argument in sys.argv[1:5])
    _die_with(parent)
    # A terminal's and systemd's signals are for slurm-gpud, which has a last look to take.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = ReplyWriter(os.dup(1))
    os.dup2(2, 1)  # whatever a library prints must not come between the answers
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
    thorough = not requests or any(request.detailed for request in requests)
    answers.say("end", reader.take_xids() if thorough else [])


def _follow(
    reader: NvmlReader, requests: Sequence[ReadRequest], answers: ReplyWriter, progress: mmap.mmap
) -> bool:
    """One look of its own accord; False if a device did not answer."""
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
    """Read one after another; what there is to say of those before does not wait long."""
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
