"""uvicorn on one TCP socket, which clients cannot hold open without asking for anything."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slurm_gpu.config.value_types import Address
from slurm_gpu.errors import OutsideError
from slurm_gpu.monitor.http.connection_limits import Senders
from slurm_gpu.monitor.http.headers import HEADERS

_BACKLOG = 1024
_STOP_WITHIN_S = 2
_REQUEST_WITHIN_S = 10.0
"""So long a client may take to say what it wants, from when it connected or began to say it."""
_HEAD_BYTES = 1 << 16
"""Of a request, before its body."""
_AHEAD = 16
"""So many requests may come before the one before them is answered; no browser sends any."""
_BODY_WITHIN_S = 15.0
"""So long what it sends besides may take; whoever waits for that has answered 408 by then."""
_UNREAD_MS = 60_000
"""Whose answer cannot be sent on for so long has gone, or does not want it."""
_CONNECTIONS = 4000
SENDERS = Senders()


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's own, which would wait for a request for ever."""

    _timer: asyncio.TimerHandle | None = None
    _sender: str | None = None
    _head_bytes = 0
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(transport)
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        # asyncio does so only where the listener was made with IPPROTO_TCP by name. Without it the end of an
        # answer waits 40 ms for the kernel of the reader to confirm its beginning.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender = None if self.client is None else self.client[0]
        if SENDERS.come(self._sender, _CONNECTIONS - len(self.connections)):
            self._await_request(_REQUEST_WITHIN_S)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        SENDERS.go(self._sender)
        self._got_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_request(_REQUEST_WITHIN_S)  # it need not become one: it may be empty lines
        self._head_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and not self._in_body and self._head_bytes > _HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins, perhaps the next one on this connection."""
        if len(self.pipeline) >= _AHEAD:
            # Ends the parsing: else a quarter of a MiB of them takes 30 MiB, from whoever can connect.
            raise ValueError(f"more than {_AHEAD} requests wait for the answer to the first")
        super().on_message_begin()
        if self._timer is None:
            self._await_request(_REQUEST_WITHIN_S)

    def on_headers_complete(self) -> None:
        """It is known what the client wants; a body may follow, whether or not anybody wants that."""
        self._got_request()
        self._await_request(_BODY_WITHIN_S)
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All has come."""
        self._got_request()
        self._head_bytes, self._in_body = 0, False
        super().on_message_complete()

    def _await_request(self, within_s: float) -> None:
        self._timer = self.loop.call_later(within_s, self.transport.abort)

    def _got_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def listen(address: Address) -> socket.socket:
    """A listening socket; raises OutsideError saying what is in the way."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OutsideError(f"cannot listen on {address}: {error.strerror or error}") from error


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; answers that would go on for long are told to end."""
        self._on_stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to serve(): uvicorn would raise them again at the end, so that we die of SIGTERM."""
        yield


def make_server(app: ASGIApp, on_stop: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server for `app`; its `serve(sockets)` calls `on_stop` and ends when its `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=list(HEADERS),
        proxy_headers=False,  # or a sender could choose its own address
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_WITHIN_S,
        timeout_keep_alive=75,
    )
    return _Server(config, on_stop)


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    on_stop: Callable[[], None] = lambda: None,
    beat: Callable[[], float] | None = None,
) -> None:
    """Answer requests until SIGTERM or SIGINT.

    `beat` is called in between, and says after how many seconds to call it again.
    """
    server = make_server(app, on_stop)

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    beating = None if beat is None else asyncio.create_task(_keep_beating(beat))
    try:
        await server.serve([listener])
    finally:
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


async def _keep_beating(beat: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(beat())
