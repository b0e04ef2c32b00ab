"""The short way in for what nodes ship: nearly all requests are these, and all of one shape.

A connection on TCP is looked at here first. One that posts to /v1/node is read, and answered once its
shipment is taken in; any other is passed on with what was read of it. There is no task for it, and no web
framework: these take several times as long as what is to be done.
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
from slurm_gpu.database.ingest.body_budget import Bodies, Body
from slurm_gpu.database.ingest.stall_detector import Lane

log = logging.getLogger(__name__)
_FAILURES = OutageLog(log, "a shipment was not accepted: %s", SystemClock())

TARGET = "/v1/node"
_HEAD_BYTES = 1 << 13
"""Whose head is longer is no node."""
_PIECE_BYTES = 1 << 18
_LOOK_EACH_S = 0.5
"""So often it is seen who takes too long."""
_UNREAD_S = 60.0
"""Whose answer cannot be sent on for so long has gone, or does not want it."""
_STOP_WITHIN_S = 2.0
_UNCOMMON = frozenset({b"transfer-encoding", b"expect", b"upgrade", FOR_USER.lower().encode()})
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


def now_s() -> float:
    """As the loop counts."""
    return asyncio.get_running_loop().time()


class Visit:
    """One connection: a request, and who waits for its answer (see crew.Receiver)."""

    def __init__(
        self, hatch: Hatch, connection: socket.socket, address: str, within_s: float, held: Body
    ) -> None:
        """A request is to have its head `within_s`; its body is counted as `held`."""
        self._hatch, self._connection, self.address = hatch, connection, address
        self.held = held
        self.since_s, self.within_s = now_s(), within_s
        self.headers: dict[bytes, str] = {}
        self.body = b""
        # It knows us as we know it: let go of at once, since bodies would wait for a search for cycles.
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url, self._kept, self._answer = b"", b"", b""
        self._coming = bytearray()
        self._is_ours: bool | None = None
        self.is_whole = self.waits = False

    # What the parser finds: of the first request, since what follows it is not looked at

    def on_url(self, url: bytes) -> None:
        """A part of it."""
        if not self.is_whole:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of them. What no node sends is for others to judge."""
        if self.is_whole:
            return
        name = name.lower()
        if name in self.headers or name in _UNCOMMON:
            self._is_ours = False
        self.headers[name] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """It is known what the peer wants."""
        if self.is_whole or self._parser is None:
            return
        is_post = self._parser.get_method() == b"POST" and self._url == TARGET.encode()
        length = self.headers.get(b"content-length", "")
        is_known = b"authorization" in self.headers and is_taken(length)
        self._is_ours = self._is_ours is None and is_post and is_known
        self.since_s, self.within_s = now_s(), BODY_WITHIN_S

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        if self.is_whole:
            return
        if self.held.grow(len(body)):
            self._coming += body
        else:
            self._coming.clear()

    def on_message_complete(self) -> None:
        """The request is there, whole."""
        if not self.is_whole:
            self.is_whole, self.body = True, bytes(self._coming)
            self._coming.clear()

    # What the loop sees

    def readable(self) -> None:
        """Something came, or the end."""
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
            self._hatch.pass_on(self, self._connection, self._kept)
        elif self.is_whole:
            self._parser, self.waits = None, True
            self._hatch.take(self, self._connection)

    def writable(self) -> None:
        """There is room for more of the answer."""
        try:
            self._answer = self._answer[self._connection.send(self._answer) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._answer = b""
        if not self._answer:
            self.close()

    def close(self) -> None:
        """It is over."""
        if self._connection.fileno() >= 0:
            self._parser, self.waits = None, False
            self._hatch.forget(self, self._connection)
            self._connection.close()

    # What whoever takes it in asks and tells

    def is_in_vain(self) -> bool:
        """Whether the peer has gone; for any thread."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return not self.waits

    def set_result(self, result: bytes, /) -> None:
        """It is taken in."""
        self._send(_OK % len(result) + result)

    def set_exception(self, error: Exception, /) -> None:
        """It is not."""
        try:
            response = answer_to(error)
        except Exception as unforeseen:
            _FAILURES.failed(unforeseen)
            response = Response("Internal Server Error", 500, media_type="text/plain")
        lines = [f"HTTP/1.1 {response.status_code} -\r\n".encode()]
        lines += [b"%s: %s\r\n" % header for header in response.raw_headers]
        self._send(b"".join([*lines, b"connection: close\r\n\r\n", response.body]))

    def _send(self, answer: bytes) -> None:
        if self.waits:
            self.waits, self._answer = False, answer
            self.since_s, self.within_s = now_s(), _UNREAD_S
            self._hatch.answered()
            self.writable()
            if self._answer:
                asyncio.get_running_loop().add_writer(self._connection.fileno(), self.writable)


class Hatch:
    """The connections that are looked at, or answered here."""

    def __init__(self, take: Callable[[Visit], None], lane: Lane, bodies: Bodies) -> None:
        """`take` takes a shipment in, and tells the visit; it is seen to wait in `lane`."""
        self._take, self._lane, self._bodies = take, lane, bodies
        self._visits: dict[Visit, None] = {}
        self.others: Callable[[socket.socket, bytes], None] = lambda connection, _: connection.close()
        """Deals with a connection that is none of ours, of which so much was read."""
        self.ended: Callable[[str], None] = lambda address: None
        """Is told of an address whose connection is none of ours any more."""

    def __len__(self) -> int:
        return len(self._visits)

    def open(self, connection: socket.socket, address: str, within_s: float) -> None:
        """Look what comes there, and begins within that time."""
        visit = Visit(self, connection, address, within_s, self._bodies.begin(address))
        self._visits[visit] = None
        # By its number: where a socket is not known yet, selectors spell it out, which takes a while.
        asyncio.get_running_loop().add_reader(connection.fileno(), visit.readable)

    def take(self, visit: Visit, connection: socket.socket) -> None:
        """A shipment is there."""
        asyncio.get_running_loop().remove_reader(connection.fileno())
        self._lane.begin()
        try:
            visit.held.require_room()
            self._take(visit)
        except Exception as error:
            visit.set_exception(error)

    def answered(self) -> None:
        """One that was taken in."""
        self._lane.end()

    def pass_on(self, visit: Visit, connection: socket.socket, read: bytes) -> None:
        """It is something else."""
        self.forget(visit, connection)
        self.others(connection, read)

    def forget(self, visit: Visit, connection: socket.socket) -> None:
        """It is over, or not ours."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(connection.fileno())
        loop.remove_writer(connection.fileno())
        del self._visits[visit]
        visit.held.close()
        self.ended(visit.address)

    async def watch(self) -> None:
        """Let those go that take too long, until this is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EACH_S)
            late = [one for one in self._visits if not one.waits and now_s() - one.since_s > one.within_s]
            for visit in late:
                visit.close()

    async def stop(self) -> None:
        """Those who wait for an answer, or for the rest of it, get a moment, the others none."""
        for visit in [one for one in self._visits if not one.is_whole]:
            visit.close()
        until_s = now_s() + _STOP_WITHIN_S
        while self._visits and now_s() < until_s:
            await asyncio.sleep(0.01)
        for visit in list(self._visits):
            visit.close()
