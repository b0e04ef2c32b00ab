"""The process that calls NVML for slurm-gpud: python -m slurm_gpu.node.reader PARENT LEAVE_OUT ONLY.

It may be killed at any time: where a call hangs in the driver, nothing else helps. So it keeps no state that
matters, imports little, and never outlives slurm-gpud. Lines of JSON go both ways. It is told
`["find", [index to leave out, …]]`, which it does at the start unasked, or `["read", [request, …]]`. It says

    ["log", priority, text]          at any time
    ["count", n]                     then for each index in turn: ["gpu", index, [facts, …]], and ["end"]
    ["error", text]                  instead, where there is no driver
    ["reading", uuid, reading]       for each request in turn, or ["failure", uuid, trouble, why]; then
    ["end", [xid, …]]
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from slurm_gpu.errors import NvmlError
from slurm_gpu.node.nvml import NvmlReader
from slurm_gpu.node.reading import Failure, Request

_PR_SET_PDEATHSIG = 1
Write = Callable[..., None]


def main() -> None:
    """Serve until standard input ends."""
    parent, leave_out, only = (json.loads(argument) for argument in sys.argv[1:4])
    _die_with(parent)
    # A terminal's and systemd's signals are for slurm-gpud, which has a last look to take.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come between the answers

    def write(*message: Any) -> None:
        os.write(answers, json.dumps(message, separators=(",", ":")).encode() + b"\n")

    reader = NvmlReader(lambda priority, text: write("log", priority, text))
    _find(reader, leave_out, only, write)
    for line in sys.stdin.buffer:
        what, argument = json.loads(line)
        if what == "find":
            _find(reader, argument, None, write)
        else:
            _read(reader, (Request(*fields) for fields in argument), write)


def _find(reader: NvmlReader, leave_out: Collection[int], only: int | None, write: Write) -> None:
    try:
        count = reader.start()
        write("count", count)
        if only is not None:
            leave_out = set(range(count)) - {only}
        for index, found in reader.find(leave_out):
            write("gpu", index, found)
    except NvmlError as error:
        write("error", str(error))
    else:
        write("end")


def _read(reader: NvmlReader, requests: Iterable[Request], write: Write) -> None:
    thorough = True
    for request in requests:
        thorough = request.detailed
        outcome = reader.read_one(request)
        if isinstance(outcome, Failure):
            write("failure", request.uuid, *outcome)
        else:
            write("reading", request.uuid, outcome)
    write("end", reader.take_xids() if thorough else [])


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main()
