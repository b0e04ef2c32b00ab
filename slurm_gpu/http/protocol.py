"""Implement HTTP/1.1 with limits on time, headers and requests in progress."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slurm_gpu.http.connection_limits import Sender
from slurm_gpu.http.identity import CONNECTION, PEER_UID

if TYPE_CHECKING:
    from slurm_gpu.http.server import HttpServer

_HEAD_BYTES = 1 << 16
# Maximum number of pipelined requests. Without a limit, 256 KiB of requests would arrive per answer and take
# 30 MiB of memory. No client in slurm-gpu and no browser pipelines requests.
_AHEAD = 16
_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of socket(7)


class LimitedProtocol(HttpToolsProtocol):
    """A connection with uvicorn's protocol and time limits; uvicorn itself waits indefinitely for a request.

    The state of each request contains the uid that a Unix socket's peer had when it connected.
    """

    def __init__(self, server: HttpServer, early: bytes = b"") -> None:
        """Prepare for a connection from which `early` has already been read."""
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._limits, self._senders, self._early = server.limits, server.senders, early
        self._sender: Sender = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(transport)
        connection: socket.socket = transport.get_extra_info("socket")
        self.app_state = {**self.app_state, CONNECTION: transport}
        if connection.family == socket.AF_UNIX:
            self._sender = _peer_uid(connection)
            self.app_state[PEER_UID] = self._sender
        elif self.client is not None:
            self._sender = self.client[0]
        free = self._limits.room(connection.family) - len(self.connections)
        if not self._senders.come(self._sender, free):
            transport.abort()
            return
        self._require_within(self._limits.request_within_s)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._senders.go(self._sender)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, which are a part of a request."""
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            # The data may be empty lines, or the rest of an answered request. uvicorn sets no time limit for
            # either.
            self._require_within(self._limits.request_within_s)
        self._head_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and not self._in_body and self._head_bytes > _HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin a request, which may be a later one on this connection."""
        if len(self.pipeline) >= _AHEAD:
            # This error ends the parsing, and the client receives the status 400.
            raise ValueError(f"more than {_AHEAD} requests wait for the answer to the first")
        super().on_message_begin()
        if self._timer is None:
            self._require_within(self._limits.request_within_s)

    def on_headers_complete(self) -> None:
        """Begin the body of a request, which may be empty."""
        self._stop_timer()
        if self._limits.body_within_s is not None:
            self._require_within(self._limits.body_within_s)
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request."""
        self._in_body = False
        if not self.cycle.response_complete:
            self._stop_timer()
        # If the response is complete, the timer keeps running and limits the wait for the next request,
        # because uvicorn stopped its own timer while it received the body.
        super().on_message_complete()

    def _require_within(self, seconds: float) -> None:
        self._head_bytes = 0
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _peer_uid(connection: socket.socket) -> int:
    """Return the uid that the peer of a Unix socket had when it connected."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
