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
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slurm_gpu.clock import SystemClock
from slurm_gpu.config.value_types import Address
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.request import CONNECTION, PEER_UID
from slurm_gpu.database.ingest.ingest_server import Hatch
from slurm_gpu.errors import OutsideError

log = logging.getLogger(__name__)

_BACKLOG = 4096
"""Who finds no room waits here, and costs nothing; the kernel may have a smaller limit of its own."""
_STOP_WITHIN_S = 2
_REQUEST_WITHIN_S = 5.0
_HEAD_BYTES = 1 << 16
"""Of a request, before its body."""
_CONNECTIONS = 4000
"""Ten thousand nodes post a thousand times a second, and all wait while nothing is answered for a moment."""
_WAITED_S = 8.0
"""Who has waited in the kernel for longer is let go: a node gives up after 20 s.

Served in turn, all would be served just after that.
"""
_MORE_ON_UNIX = 500
"""Those on this host get in where nodes have to wait."""
_CONNECTIONS_OF_A_PEER = 200
_SHARE_OF_ROOM = 4
"""A peer may hold this part of the room that is left: twenty that take all they can leave 668 to others."""
_ALWAYS_OF_A_PEER = 8
_AHEAD = 16
"""So many requests may come before the one before them is answered; none of our clients sends any."""
_UNREAD_MS = 60_000
"""Whose answer cannot be sent on for so long has gone, or does not want it."""
_LOOK_AGAIN_S = 0.02
"""So often it is seen whether there is room again."""
_PAUSE_S = 1.0
"""After the kernel had no connection for us, for want of descriptors or memory."""
_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of socket(7)
_HEARD_MS = struct.Struct("52xI")
"""tcpi_last_data_recv of struct tcp_info in linux/tcp.h: since when nothing more has come from the peer."""


class Peers:
    """How many connections each has."""

    def __init__(self) -> None:
        self._open: Counter[object] = Counter()
        self._crowded = OutageLog(log, "%s", SystemClock())

    def come(self, peer: object, free: int) -> bool:
        """One more, which is to go in any case; whether it may stay where there is room for so many more."""
        self._open[peer] += 1
        most = _most_of_a_peer(free)
        if self._open[peer] <= most or peer == 0:
            return True
        if peer is not None:
            self._crowded.failed(f"{peer} has more than {most} connections")
        return False

    def go(self, peer: object) -> None:
        """One less."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]


PEERS = Peers()


class PeerCredentialProtocol(HttpToolsProtocol):
    """HTTP/1.1 that puts the uid of a Unix socket's peer, as the kernel saw it connect, into the state.

    Nobody can shut out the others: a peer (a user, or an address) has so many connections at once, and each
    has to say within seconds, and in few words, what it wants.
    """

    def __init__(self, *given: Any, early: bytes = b"") -> None:
        """`early` was read of the connection already."""
        super().__init__(*given)
        self._early = early

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(transport)
        self._request_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_body = False
        peer: socket.socket = transport.get_extra_info("socket")
        self._peer: object = self.client[0] if self.client is not None else None
        self.app_state = {**self.app_state, CONNECTION: transport}
        if peer.family == socket.AF_UNIX:
            _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            self.app_state[PEER_UID] = uid
            self._peer = uid
        elif self._peer is None:
            transport.abort()  # it has gone, and nobody knows whose word that would be
        if PEERS.come(self._peer, _room(peer.family) - len(self.connections)):
            self._await_request()
            if self._early:
                early, self._early = self._early, b""
                self.data_received(early)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        PEERS.go(self._peer)
        self._got_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        if self._request_timer is None and (self.cycle is None or self.cycle.response_complete):
            # Nobody reads it as yet, and it need not become a request: it may be empty lines, or what was
            # still to come of one that is answered.
            self._await_request()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._request_timer is not None and not self._in_body and self._head_bytes > _HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins, perhaps the next one on this connection."""
        if len(self.pipeline) >= _AHEAD:
            # Ends the parsing, and is answered with 400: each answer lets a quarter of a MiB of them in.
            raise ValueError(f"more than {_AHEAD} requests wait for the answer to the first")
        super().on_message_begin()
        if self._request_timer is None:
            self._await_request()

    def on_headers_complete(self) -> None:
        """It is known what the peer wants."""
        self._got_request()
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has come, whole."""
        self._in_body = False
        super().on_message_complete()

    def _await_request(self) -> None:
        self._head_bytes = 0
        self._request_timer = self.loop.call_later(_REQUEST_WITHIN_S, self.transport.abort)

    def _got_request(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


def _room(family: int) -> int:
    """For connections of a kind, beside all others."""
    return _CONNECTIONS + (_MORE_ON_UNIX if family == socket.AF_UNIX else 0)


def _most_of_a_peer(free: int) -> int:
    """Connections that one peer may have while there is room for so many more."""
    return min(_CONNECTIONS_OF_A_PEER, max(_ALWAYS_OF_A_PEER, free // _SHARE_OF_ROOM))


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


def make_server(app: ASGIApp, hatch: Hatch, on_stop: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server for `app`, beside what the hatch deals with.

    Its `serve(sockets)` calls `on_stop` and ends when its `should_exit` is set.
    """
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
    )
    return _Server(config, hatch, on_stop)


def serve(
    app: ASGIApp,
    hatch: Hatch,
    sockets: list[socket.socket],
    on_stop: Callable[[], None] = lambda: None,
    beat: Callable[[], float] | None = None,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Answer requests until SIGTERM or SIGINT; those under way get a moment to end.

    `beat` is called in between; it returns the seconds until it is to be called again. What `beside` makes
    runs meanwhile, and is cancelled at the end.
    """
    asyncio.run(_serve(make_server(app, hatch, on_stop), sockets, beat, beside))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, hatch: Hatch, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._hatch, self._on_stop = hatch, on_stop
        hatch.others, hatch.ended = self._begin, PEERS.go
        self._full = OutageLog(
            log, "cannot take connections: %s", SystemClock(), over="connections are taken again"
        )
        self._watching: asyncio.Task[None] | None = None
        self._listeners: list[socket.socket] = []
        self._beginning: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections, never more at once than there is room for.

        uvicorn would take all, and answer 503 to those beyond a limit: a thousand nodes that come again cost
        as much then as a thousand that are served. Here they wait in the kernel, and are served in turn.
        """
        await super().startup([])
        self._watching = asyncio.get_running_loop().create_task(self._hatch.watch())
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
        """Take those that wait, as far as there is room."""
        for _ in range(self._free(listener.family)):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._full.failed(error.strerror or str(error))
                self._pause(listener, _PAUSE_S)
                return
            self._full.worked()
            if _waited_s(connection) > _WAITED_S:
                connection.close()
            elif connection.family == socket.AF_UNIX:
                self._begin(connection)
            else:
                self._look(connection, address[0])
        self._pause(listener, _LOOK_AGAIN_S)

    def _free(self, family: int) -> int:
        """So many more connections there is room for."""
        return _room(family) - len(self.server_state.connections) - len(self._beginning) - len(self._hatch)

    def _look(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        # asyncio does so only where the listener was made with IPPROTO_TCP by name: the end of an answer
        # would wait for the reader's kernel to confirm its beginning.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if PEERS.come(address, self._free(connection.family)):
            self._hatch.open(connection, address, _REQUEST_WITHIN_S)
        else:
            PEERS.go(address)
            connection.close()

    def _begin(self, connection: socket.socket, early: bytes = b"") -> None:
        def protocol() -> PeerCredentialProtocol:
            return PeerCredentialProtocol(self.config, self.server_state, self.lifespan.state, early=early)

        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(protocol, connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; answers that would go on for long are told to end."""
        self._on_stop()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
        self._listeners.clear()
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(self._hatch.stop(), super().shutdown(sockets))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to _serve: uvicorn would raise them again at the end, so that we die of SIGTERM."""
        yield


def _waited_s(connection: socket.socket) -> float:
    """For how long it has been ready to be taken."""
    if connection.family == socket.AF_UNIX:
        return 0.0
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _HEARD_MS.size)
    heard_ms: int = _HEARD_MS.unpack(told)[0]
    return heard_ms / 1000


async def _serve(
    server: uvicorn.Server,
    sockets: list[socket.socket],
    beat: Callable[[], float] | None,
    beside: Callable[[], Coroutine[Any, Any, None]] | None,
) -> None:
    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    made = [None if beat is None else _keep_beating(beat), None if beside is None else beside()]
    tasks = [asyncio.create_task(one) for one in made if one is not None]
    try:
        await server.serve(sockets)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_beating(beat: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(beat())
