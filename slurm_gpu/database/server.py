"""uvicorn on a TCP socket and a Unix socket at once, knowing who is at the other end of the latter."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_gpu.database.asking import PEER_UID
from slurm_gpu.database.settings import Address
from slurm_gpu.errors import OutsideError

log = logging.getLogger(__name__)

_BACKLOG = 1024
_STOP_WITHIN_S = 2
_REQUEST_WITHIN_S = 5.0
_CONNECTIONS_OF_A_PEER = 200
_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of socket(7)


class PeerCredentialProtocol(H11Protocol):
    """HTTP/1.1 that puts the uid of a Unix socket's peer, as the kernel saw it connect, into the state.

    Nobody can shut out the others: a peer (a user, or an address) has so many connections at once, and each
    has to say within seconds what it wants.
    """

    _open: ClassVar[Counter[object]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(transport)
        self._request_timer: asyncio.TimerHandle | None = None
        peer: socket.socket = transport.get_extra_info("socket")
        self._peer: object = self.client[0] if self.client is not None else None
        if peer.family == socket.AF_UNIX:
            _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            self.app_state = {**self.app_state, PEER_UID: uid}
            self._peer = uid
        self._open[self._peer] += 1
        if self._open[self._peer] > _CONNECTIONS_OF_A_PEER and self._peer != 0:
            log.warning("%s has more than %d connections", self._peer, _CONNECTIONS_OF_A_PEER)
            transport.abort()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._open[self._peer] -= 1
        if not self._open[self._peer]:
            del self._open[self._peer]
        self._got_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._got_request()
        elif self._request_timer is None:
            self._await_request()  # the next one on this connection

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(_REQUEST_WITHIN_S, self.transport.abort)

    def _got_request(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


def listen_tcp(address: Address) -> socket.socket:
    """A listening TCP socket; raises OutsideError saying what is in the way."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OutsideError(f"cannot listen on {address.host}:{address.port}: {error.strerror}") from error


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket that every user may connect to, in place of what a killed daemon left."""
    if _answers(path):
        raise OutsideError(f"another slurm-gpudbd already listens on {path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)  # who they are, the kernel says
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OutsideError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)


def make_server(app: ASGIApp, on_stop: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server for `app`; its `serve(sockets)` calls `on_stop` and ends when its `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=PeerCredentialProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # or a sender could choose its own address
        timeout_graceful_shutdown=_STOP_WITHIN_S,
        timeout_keep_alive=30,
        limit_concurrency=2000,
    )
    return _Server(config, on_stop)


def serve(
    app: ASGIApp,
    sockets: list[socket.socket],
    on_stop: Callable[[], None] = lambda: None,
    beat: Callable[[], float] | None = None,
) -> None:
    """Answer requests until SIGTERM or SIGINT; those under way get a moment to end.

    `beat` is called in between; it returns the seconds until it is to be called again.
    """
    asyncio.run(_serve(make_server(app, on_stop), sockets, beat))


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
        """Leave signals to _serve: uvicorn would raise them again at the end, so that we die of SIGTERM."""
        yield


async def _serve(
    server: uvicorn.Server, sockets: list[socket.socket], beat: Callable[[], float] | None
) -> None:
    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    beating = None if beat is None else asyncio.create_task(_keep_beating(beat))
    try:
        await server.serve(sockets)
    finally:
        if beating is not None:
            beating.cancel()


async def _keep_beating(beat: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(beat())
