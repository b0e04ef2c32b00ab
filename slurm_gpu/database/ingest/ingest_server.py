"""Serve POST /v1/node over HTTP/1.1 without the web framework, since nearly all requests are of this kind.

Each TCP connection is read here first. A request to /v1/node with the usual headers is answered here. Any
other connection is passed on to the web framework with the bytes read so far. Serving shipments with uvicorn
and ASGI takes a fifth more CPU time, even with uvloop (bench/results/scale.md, "Ways to take in shipments").
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import httptools
from starlette.responses import Response

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.error_responses import answer_to
from slurm_gpu.database.http.request import BODY_WITHIN_S, FOR_USER, is_taken
from slurm_gpu.database.ingest.body_budget import BodyBudget, RequestBody
from slurm_gpu.database.ingest.stall_detector import StallDetector

log = logging.getLogger(__name__)
_FAILURES = OutageLog(log, "a shipment failed: %s", SystemClock())

TARGET = "/v1/node"
# Maximum sizes in bytes of a request head that is parsed here, and of one read.
_HEAD_BYTES = 1 << 13
_PIECE_BYTES = 1 << 18
# Interval between checks for connections that take too long.
_CHECK_EACH_S = 0.5
# A client that does not read its answer for this time is disconnected.
_UNREAD_S = 60.0
_STOP_WITHIN_S = 2.0
_UNCOMMON = frozenset({b"transfer-encoding", b"expect", b"upgrade", FOR_USER.lower().encode()})
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


def now_s() -> float:
    """Return the time of the event loop's clock."""
    return asyncio.get_running_loop().time()


class IngestConnection:
    """A connection that serves one request."""

    def __init__(
        self,
        ingest: IngestServer,
        connection: socket.socket,
        address: str,
        within_s: float,
        body_budget: RequestBody,
    ) -> None:
        """Allow `within_s` seconds for the request head; count the body in `body_budget`."""
        self._server, self._connection, self.address = ingest, connection, address
        self.body_budget = body_budget
        self.since_s, self.within_s = now_s(), within_s
        self.headers: dict[bytes, str] = {}
        self.body = b""
        # The reference cycle with the parser is broken once the request is read; otherwise, the body would
        # remain in memory until garbage collection.
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url, self._kept, self._answer = b"", b"", b""
        self._coming = bytearray()
        self._is_ours: bool | None = None
        self.is_whole = self.waits = False

    # Callbacks of the parser for the first request; later requests are ignored.

    def on_url(self, url: bytes) -> None:
        """Record a part of the URL."""
        if not self.is_whole:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header; the web framework must handle requests with unusual headers."""
        if self.is_whole:
            return
        name = name.lower()
        if name in self.headers or name in _UNCOMMON:
            self._is_ours = False
        self.headers[name] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """Decide whether the request is answered here."""
        if self.is_whole or self._parser is None:
            return
        is_post = self._parser.get_method() == b"POST" and self._url == TARGET.encode()
        length = self.headers.get(b"content-length", "")
        is_known = b"authorization" in self.headers and is_taken(length)
        self._is_ours = self._is_ours is None and is_post and is_known
        self.since_s, self.within_s = now_s(), BODY_WITHIN_S

    def on_body(self, body: bytes) -> None:
        """Record a part of the body."""
        if self.is_whole:
            return
        if self.body_budget.grow(len(body)):
            self._coming += body
        else:
            self._coming.clear()

    def on_message_complete(self) -> None:
        """End the request."""
        if not self.is_whole:
            self.is_whole, self.body = True, bytes(self._coming)
            self._coming.clear()

    # Callbacks of the event loop

    def readable(self) -> None:
        """Read the bytes that have arrived; close the connection if the peer has closed it."""
        try:
            data = self._connection.recv(_PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._is_ours is None:
            self._kept += data
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_ours = bool(self._is_ours and self.is_whole)
        if self._is_ours:
            self._kept = b""
        if self._is_ours is False or (self._is_ours is None and len(self._kept) > _HEAD_BYTES):
            self._parser = None
            self._server.pass_on(self, self._connection, self._kept)
        elif self.is_whole:
            self._parser, self.waits = None, True
            self._server.take(self, self._connection)

    def writable(self) -> None:
        """Send the next part of the answer."""
        try:
            self._answer = self._answer[self._connection.send(self._answer) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._answer = b""
        if not self._answer:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection.fileno() >= 0:
            self._parser, self.waits = None, False
            self._server.forget(self, self._connection)
            self._connection.close()

    # Methods for the endpoint

    def is_in_vain(self) -> bool:
        """Return whether the peer has closed the connection; callable from any thread."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def answer(self, result: bytes) -> None:
        """Answer with 200."""
        self._send(_OK % len(result) + result)

    def refuse(self, error: Exception) -> None:
        """Answer with an error."""
        try:
            response = answer_to(error)
        except Exception as unexpected:
            _FAILURES.failed(unexpected)
            response = Response("Internal Server Error", 500, media_type="text/plain")
        lines = [f"HTTP/1.1 {response.status_code} -\r\n".encode()]
        lines += [b"%s: %s\r\n" % header for header in response.raw_headers]
        self._send(b"".join([*lines, b"connection: close\r\n\r\n", response.body]))

    def _send(self, answer: bytes) -> None:
        if self.waits:
            self.waits, self._answer = False, answer
            self.since_s, self.within_s = now_s(), _UNREAD_S
            self._server.answered()
            self.writable()
            if self._answer:
                asyncio.get_running_loop().add_writer(self._connection.fileno(), self.writable)


class IngestServer:
    """Reads connections, and answers those with a request to /v1/node."""

    def __init__(
        self, take: Callable[[IngestConnection], None], stall_detector: StallDetector, bodies: BodyBudget
    ) -> None:
        """Call `take` with each complete request; `take` must ensure that the request is answered.

        `stall_detector` counts the requests that wait for an answer.
        """
        self._take, self._stall_detector, self._bodies = take, stall_detector, bodies
        self._visits: dict[IngestConnection, None] = {}
        self.others: Callable[[socket.socket, bytes], None] = lambda connection, _: connection.close()
        """A function that takes over a connection that is not answered here, and the bytes read so far."""
        self.ended: Callable[[str], None] = lambda address: None
        """A function that receives the address of each connection that was closed or passed on."""

    def __len__(self) -> int:
        return len(self._visits)

    def open(self, connection: socket.socket, address: str, within_s: float) -> None:
        """Read a connection, and close it if the request head takes longer than `within_s`."""
        visit = IngestConnection(self, connection, address, within_s, self._bodies.begin(address))
        self._visits[visit] = None
        # Use the descriptor number: for an unregistered socket object, selectors spend time on formatting an
        # error message.
        asyncio.get_running_loop().add_reader(connection.fileno(), visit.readable)

    def take(self, visit: IngestConnection, connection: socket.socket) -> None:
        """Pass a complete request to the endpoint."""
        asyncio.get_running_loop().remove_reader(connection.fileno())
        self._stall_detector.begin()
        try:
            visit.body_budget.require_room()
            self._take(visit)
        except Exception as error:
            visit.refuse(error)

    def answered(self) -> None:
        """Count a request as answered."""
        self._stall_detector.end()

    def pass_on(self, visit: IngestConnection, connection: socket.socket, read: bytes) -> None:
        """Hand a connection over to the web framework."""
        self.forget(visit, connection)
        self.others(connection, read)

    def forget(self, visit: IngestConnection, connection: socket.socket) -> None:
        """Stop handling a connection that ends or is passed on."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(connection.fileno())
        loop.remove_writer(connection.fileno())
        del self._visits[visit]
        visit.body_budget.close()
        self.ended(visit.address)

    async def watch(self) -> None:
        """Close connections that take too long; run until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_EACH_S)
            late = [one for one in self._visits if not one.waits and now_s() - one.since_s > one.within_s]
            for visit in late:
                visit.close()

    async def stop(self) -> None:
        """Close all connections; those with a complete request have _STOP_WITHIN_S to receive the answer."""
        for visit in [one for one in self._visits if not one.is_whole]:
            visit.close()
        until_s = now_s() + _STOP_WITHIN_S
        while self._visits and now_s() < until_s:
            await asyncio.sleep(0.01)
        for visit in list(self._visits):
            visit.close()
