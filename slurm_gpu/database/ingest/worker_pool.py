"""Processes of slurm-gpudbd's own that take in what nodes post: Python computes on one processor in each.

All accept connections from one listening socket, slurm-gpudbd included. A worker keeps nothing that is
missed when it dies: slurm-gpudbd receives live values, and all else that readers ask for, in batches.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.ingest.worker_protocol import (
    Beginning,
    ItemsRejected,
    Needed,
    NodeSeen,
    PassedOn,
    ShipmentTaken,
    WindowArrived,
    WorkerMessage,
    WorkerStatus,
    decode_words,
    encode,
    receive_connection,
)
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.rejections import Rejected

log = logging.getLogger("slurm-gpudbd")

_COMMAND = (sys.executable, "-S", "-P", "-m", "slurm_gpu.database.ingest.worker")
SILENT_S = 120.0
"""A worker reports each second. One that has not for so long hangs, and is killed."""
_LONG_S = 60.0
"""A worker that lived for so long is restarted at once."""
_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
_END_WITHIN_S = 3.0
"""A worker has two seconds for requests under way."""
_MOST_BYTES = 64 << 20
_SEND_WITHIN = struct.pack("ll", 10, 0)
"""A timeval. A worker that reads nothing for so long is killed."""


class Workers:
    """The processes, each with a thread that starts it, reads its reports and restarts it."""

    def __init__(
        self,
        n: int,
        config: SiteConfig,
        url: str,
        clock: Clock,
        memory: LiveState,
        listener: socket.socket,
        *,
        for_people: bool,
    ) -> None:
        """`url` is the database's. None is started before `running`."""
        self._beginning = Beginning(config, url, for_people, listener.fileno(), 1 / (n + 1))
        self._workers = [Worker(f"worker {n + 1}", self._beginning, clock, memory) for n in range(n)]

    @contextlib.contextmanager
    def running(self, adopt: Callable[[socket.socket, bytes], None]) -> Iterator[None]:
        """Keep them alive until it is left; `adopt` takes over connections that are no shipments."""
        threads = [
            threading.Thread(target=worker.keep, args=[adopt], name=worker.name, daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.end()
            until_s = time.monotonic() + _END_WITHIN_S
            for worker, thread in zip(self._workers, threads, strict=True):
                thread.join(max(0.0, until_s - time.monotonic()))
                worker.kill()
                thread.join(1.0)

    def end(self) -> None:
        """Have them take no more connections, and end."""
        for worker in self._workers:
            worker.end()

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """Return why one of them hangs, in words."""
        return next((worker.hung for worker in self._workers if worker.hung is not None), None)


class Worker:
    """One of them, restarted whenever it ends."""

    def __init__(self, name: str, beginning: Beginning, clock: Clock, memory: LiveState) -> None:
        self.name, self._beginning, self._clock, self._memory = name, beginning, clock, memory
        self._ends = OutageLog(log, f"{name} %s", clock, over=f"{name} runs again")
        self._lost = OutageLog(log, f"a connection that {name} passed on is closed: %s", clock)
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.hung: str | None = None

    def keep(self, adopt: Callable[[socket.socket, bytes], None]) -> None:
        """Start it again and again."""
        pause_s = _PAUSE_S
        while not self._ending.is_set():
            began_s = self._clock.monotonic()
            try:
                why = self._live_once(adopt)
            except EOFError:
                why = "has ended"
            except Exception as error:  # it sent nonsense, or there is no descriptor left: that may pass
                why = f"has ended: {error}"
            if self._ending.is_set():
                return
            if self._clock.monotonic() - began_s >= _LONG_S:
                pause_s = _PAUSE_S
            self._ends.failed(f"{why}; it is restarted in {pause_s:g} s")
            self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def end(self) -> None:
        """Have it answer what it has read, and end."""
        self._ending.set()
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    def _live_once(self, adopt: Callable[[socket.socket, bytes], None]) -> str:
        """Return how it ended."""
        try:
            channel, process = self._start()
        except OSError as error:  # such as no descriptor left: that may pass
            return f"cannot be started: {error.strerror or error}"
        self._process = process
        with channel:
            try:
                channel.send_bytes(encode(self._beginning))
                needed = Needed(frozenset(), {})
                while channel.poll(SILENT_S):
                    for word in decode_words(channel.recv_bytes(_MOST_BYTES)):
                        self._take(word, channel, adopt)
                        if isinstance(word, WorkerStatus) and (now := self._needed()) != needed:
                            needed = now
                            channel.send_bytes(encode(needed))
                return f"has said nothing for {SILENT_S:g} s, and was killed"
            finally:
                self.hung = None
                process.kill()
                process.wait()

    def _start(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_WITHIN)
            process = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), self._beginning.listener],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C in a terminal is for slurm-gpudbd, which then ends it
            )
            return Connection(ours.detach()), process

    def _needed(self) -> Needed:
        return Needed(self._memory.needs.names(), self._memory.wants.all())

    def _take(
        self, word: WorkerMessage, channel: Connection, adopt: Callable[[socket.socket, bytes], None]
    ) -> None:
        match word:
            case NodeSeen():
                self._memory.board.put(word.node, word.live, word.interval_s)
            case ShipmentTaken():
                self._memory.arrivals.heard(word.node, word.version)
            case WindowArrived():
                self._memory.wants.arrived(word.node, word.job_id)
            case ItemsRejected():
                self._memory.rejections.add(Rejected(0, "", kind) for kind in word.kinds)
            case PassedOn():
                connection = receive_connection(channel)
                if connection is None:
                    self._lost.failed("no descriptor is left for it")
                else:
                    adopt(connection, word.early)
            case WorkerStatus():
                self.hung = word.hung
                self._ends.worked()
