"""Run worker processes that receive shipments, since a single Python process uses only one CPU core.

All processes, including slurm-gpudbd, accept connections from one listening socket. No important state is
lost when a worker dies, since workers send live values and other data for readers to slurm-gpudbd in batches.
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
    ItemsRejected,
    NeededData,
    NodeSeen,
    PassedOn,
    ShipmentStored,
    WindowArrived,
    WorkerMessage,
    WorkerSetup,
    WorkerStatus,
    decode_messages,
    encode,
    receive_connection,
)
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.rejections import Rejected

log = logging.getLogger("slurm-gpudbd")

_COMMAND = (sys.executable, "-S", "-P", "-m", "slurm_gpu.database.ingest.worker")
# A worker reports every second. A worker that is silent for this time is considered hung and is killed.
SILENT_S = 120.0
# A worker that ends after running for at least this time is restarted immediately.
_LONG_S = 60.0
_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
# A worker that is asked to end spends up to two seconds on requests in progress.
_END_WITHIN_S = 3.0
_MOST_BYTES = 64 << 20
# A worker that reads nothing for this time (a struct timeval) is killed.
_SEND_WITHIN = struct.pack("ll", 10, 0)


class Workers:
    """The worker processes; a thread per worker starts it, reads its reports, and restarts it if it ends."""

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
        """Prepare `n` workers for the database at `url`; `running` starts them."""
        self._beginning = WorkerSetup(config, url, for_people, listener.fileno(), 1 / (n + 1))
        self._workers = [Worker(f"worker {n + 1}", self._beginning, clock, memory) for n in range(n)]

    @contextlib.contextmanager
    def running(self, adopt: Callable[[socket.socket, bytes], None]) -> Iterator[None]:
        """Keep the workers alive within the context.

        `adopt` takes over the connections that the workers do not answer.
        """
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
        """Ask all workers to end."""
        for worker in self._workers:
            worker.end()

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """Return the reason why a worker hangs, or None if no worker hangs."""
        return next((worker.hung for worker in self._workers if worker.hung is not None), None)


class Worker:
    """One worker process, restarted whenever it ends."""

    def __init__(self, name: str, beginning: WorkerSetup, clock: Clock, memory: LiveState) -> None:
        self.name, self._beginning, self._clock, self._memory = name, beginning, clock, memory
        self._ends = OutageLog(log, f"{name} %s", clock, over=f"{name} runs again")
        self._lost = OutageLog(log, f"a connection that {name} passed on is closed: %s", clock)
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.hung: str | None = None

    def keep(self, adopt: Callable[[socket.socket, bytes], None]) -> None:
        """Start the process, and restart it whenever it ends, until `end` is called."""
        pause_s = _PAUSE_S
        while not self._ending.is_set():
            began_s = self._clock.monotonic()
            try:
                why = self._live_once(adopt)
            except EOFError:
                why = "has ended"
            except Exception as error:  # perhaps temporary: an invalid message, or no file descriptor left
                why = f"has ended: {error}"
            if self._ending.is_set():
                return
            if self._clock.monotonic() - began_s >= _LONG_S:
                pause_s = _PAUSE_S
            self._ends.failed(f"{why}; it is restarted in {pause_s:g} s")
            self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def end(self) -> None:
        """Ask the worker to answer the requests that it has read, and then to end."""
        self._ending.set()
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the worker."""
        if self._process is not None:
            self._process.kill()

    def _live_once(self, adopt: Callable[[socket.socket, bytes], None]) -> str:
        """Start the process and read its messages until it ends; return a description of its end."""
        try:
            channel, process = self._start()
        except OSError as error:  # such as no file descriptor left: this may be temporary
            return f"cannot be started: {error.strerror or error}"
        self._process = process
        with channel:
            try:
                channel.send_bytes(encode(self._beginning))
                needed = NeededData(frozenset(), {})
                while channel.poll(SILENT_S):
                    for message in decode_messages(channel.recv_bytes(_MOST_BYTES)):
                        self._take(message, channel, adopt)
                        if isinstance(message, WorkerStatus) and (now := self._needed()) != needed:
                            needed = now
                            channel.send_bytes(encode(needed))
                return f"was silent for {SILENT_S:g} s and was killed"
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
                # Ctrl-C in a terminal is for slurm-gpudbd, which then ends the workers
                start_new_session=True,
            )
            return Connection(ours.detach()), process

    def _needed(self) -> NeededData:
        return NeededData(self._memory.needs.names(), self._memory.wants.all())

    def _take(
        self, message: WorkerMessage, channel: Connection, adopt: Callable[[socket.socket, bytes], None]
    ) -> None:
        match message:
            case NodeSeen():
                self._memory.board.put(message.node, message.live, message.interval_s)
            case ShipmentStored():
                self._memory.arrivals.record_shipment(message.node, message.version)
            case WindowArrived():
                self._memory.wants.arrived(message.node, message.job_id)
            case ItemsRejected():
                self._memory.rejections.add(Rejected(0, "", kind) for kind in message.kinds)
            case PassedOn():
                connection = receive_connection(channel)
                if connection is None:
                    self._lost.failed("no file descriptor is left")
                else:
                    adopt(connection, message.early)
            case WorkerStatus():
                self.hung = message.hung
                self._ends.worked()
