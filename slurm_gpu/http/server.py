"""Run the HTTP server of the daemons: uvicorn with limits on TCP and Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.http.connection_limits import ConnectionLimits, Senders
from slurm_gpu.http.protocol import LimitedProtocol

log = logging.getLogger(__name__)

_STOP_WITHIN_S = 2
# Interval between checks for ended connections while the limit is reached.
_FULL_S = 0.02
# Number of connections accepted at once; small, because processes may share a listening socket.
_AT_ONCE = 16
# Pause after accept(2) fails for lack of descriptors or memory.
_PAUSE_S = 1.0
# tcpi_last_data_recv of struct tcp_info in linux/tcp.h: milliseconds since the peer sent something.
_LAST_RECEIVED_MS = struct.Struct("52xI")


class FirstReader(Protocol):
    """Reads each TCP connection first, and answers it or passes it to `others` with the bytes read so far."""

    others: Callable[[socket.socket, bytes], None]
    ended: Callable[[str], None]
    """A function that is called with the peer's address when a connection has been closed or passed on."""

    def __len__(self) -> int: ...

    def open(self, connection: socket.socket, address: str, within_s: float) -> None:
        """Read a connection, and close it if its request head takes longer than `within_s`."""

    async def watch(self) -> None:
        """Close connections that take too long, until cancelled."""

    async def stop(self) -> None:
        """Answer requests in progress, and close all connections."""


class HttpServer(uvicorn.Server):
    """A server for `app`; when `should_exit` is set, it calls `on_stop`, and `serve(sockets)` returns."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        on_stop: Callable[[], None] = lambda: None,
        *,
        first: FirstReader | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Prepare the server; `headers` are added to every answer, including answers from uvicorn itself."""
        config = uvicorn.Config(
            app,
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=list(headers),
            proxy_headers=False,  # or a sender could choose its own address
            timeout_graceful_shutdown=_STOP_WITHIN_S,
            timeout_keep_alive=limits.keep_alive_s,
        )
        super().__init__(config)
        self.limits, self.senders = limits, Senders(limits)
        self._first, self._on_stop = first, on_stop
        if first is not None:
            first.others, first.ended = self._begin, self.senders.go
        self._full = OutageLog(
            log, "cannot take connections: %s", SystemClock(), over="connections are accepted again"
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._listeners: list[socket.socket] = []
        self._beginning: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections up to the limit.

        uvicorn would accept all connections, and answer 503 above a limit. In that case, a thousand nodes
        that retry would cost as much as a thousand nodes that are served. Here, excess connections wait in
        the kernel and are served in order.
        """
        await super().startup([])
        self._loop = asyncio.get_running_loop()
        if self._first is not None:
            self._watching = asyncio.get_running_loop().create_task(self._first.watch())
        for listener in sockets or ():
            listener.setblocking(False)
            self._listeners.append(listener)
            self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(seconds, self._listen, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept waiting connections up to the limit."""
        for _ in range(min(_AT_ONCE, self._free(listener.family))):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._full.failed(error.strerror or str(error))
                self._pause(listener, _PAUSE_S)
                return
            self._full.worked()
            if connection.family == socket.AF_UNIX:
                self._begin(connection)
            elif _waited_s(connection) > self.limits.backlog_s:
                connection.close()
            else:
                self._begin_tcp(connection, address[0])
        if self._free(listener.family) <= 0:
            self._pause(listener, _FULL_S)

    def _free(self, family: int) -> int:
        """Return the number of connections that may still be opened."""
        n_first = 0 if self._first is None else len(self._first)
        n_open = len(self.server_state.connections) + len(self._beginning) + n_first
        return self.limits.room(family) - n_open

    def _begin_tcp(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.limits.unread_ms)
        # asyncio sets this option only if the listener was created with IPPROTO_TCP by name. Without it, the
        # end of an answer waits 40 ms until the reader's kernel acknowledges the beginning.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._first is None:
            self._begin(connection)
        elif self.senders.come(address, self._free(connection.family)):
            self._first.open(connection, address, self.limits.request_within_s)
        else:
            self.senders.go(address)
            connection.close()

    def adopt(self, connection: socket.socket, early: bytes) -> None:
        """Take over a connection from another process, or close it if the limit is reached. Thread-safe."""

        def begin() -> None:
            if self._free(connection.family) > 0:
                self._begin(connection, early)
            else:
                connection.close()

        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(begin)
                return
        except RuntimeError:  # the loop has ended
            pass
        connection.close()

    def _begin(self, connection: socket.socket, early: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            loop.connect_accepted_socket(lambda: LimitedProtocol(self, early), connection)
        )
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the server; `on_stop` must end answers that would take a long time."""
        self._on_stop()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
        self._listeners.clear()
        if self._watching is not None:
            self._watching.cancel()
        if self._first is not None:
            await asyncio.gather(self._first.stop(), super().shutdown(sockets))
        else:
            await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `run`: uvicorn would raise them again, and SIGTERM would kill the daemon."""
        yield


def _waited_s(connection: socket.socket) -> float:
    """Return how long a TCP connection has waited since its peer last sent data."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED_MS.size)
    last_ms: int = _LAST_RECEIVED_MS.unpack(info)[0]
    return last_ms / 1000


async def run(
    server: HttpServer,
    sockets: list[socket.socket],
    beat: Callable[[], float] | None = None,
    *others: Coroutine[Any, Any, None],
) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress have two seconds to end.

    `beat` is called repeatedly and returns the seconds until its next call, as Notifier.turned does. `others`
    run at the same time, and are cancelled at the end.
    """

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    tasks = [asyncio.create_task(other) for other in others]
    if beat is not None:
        tasks.append(asyncio.create_task(_keep_beating(beat)))
    try:
        await server.serve(sockets)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_beating(beat: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(beat())
