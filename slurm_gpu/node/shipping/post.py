"""Send POST requests to slurm-gpudbd from a separate thread, so that a hung server blocks nothing.

This module implements HTTP itself, because http.client would load the mail parser and OpenSSL (6 MB). The
requests use HTTP/1.0, in which the body ends when the connection is closed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import MungeError
from slurm_gpu.munge import request_digest

log = logging.getLogger(__name__)

TARGET = "/v1/node"
TIMEOUT_S = 20.0
ANSWER_WITHIN_S = 120.0
MAX_REPLY_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP status and body; if there was no answer, the status is 0 and `failure` is the reason."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    failure: str = ""


class Sender(Protocol):
    """Sends one body at a time."""

    def send(self, body: bytes) -> None:
        """Start sending a gzipped body; call this again only after `reply` has returned the reply."""

    def reply(self) -> Reply | None:
        """Return the reply to the last body, or None if it is not available yet or was already returned."""


class HttpPost:
    """POSTs bodies to slurm-gpudbd at `url`; `credential` returns a MUNGE credential for a payload.

    If the Unix socket `local` accepts connections, it belongs to slurm-gpudbd on this host and requires no
    credential.
    """

    def __init__(
        self,
        url: str,
        source_address: str | None,
        credential: Callable[[bytes], str],
        local: Path | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "localhost", parts.port or 80
        # Pass the name as bytes: for text, Python would load the tables for international names.
        self._address: Any = self._host.encode() if self._host.isascii() else self._host
        self._netloc = parts.netloc
        self._source = (source_address, 0) if source_address is not None else None
        self._credential, self._local = credential, local

    def __call__(self, body: bytes) -> Reply:
        """Send a body and return the reply, waiting at most TIMEOUT_S for each step."""
        where = str(self._local)
        try:
            connection = self._connect_here()
            authorization = ""
            if connection is None:
                where = f"{self._host}:{self._port}"
                credential = self._credential(request_digest("POST", TARGET, body))
                authorization = f"Authorization: MUNGE {credential}\r\n"
                connection = socket.create_connection((self._address, self._port), TIMEOUT_S, self._source)
            head = (
                f"POST {TARGET} HTTP/1.0\r\nHost: {self._netloc}\r\n{authorization}"
                "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            with connection:
                return parse_reply(_exchange(connection, head.encode("latin-1") + body))
        except MungeError as error:
            return Reply(0, failure=str(error))
        except (OSError, ValueError) as error:
            return Reply(0, failure=f"{where}: {error or type(error).__name__}")

    def _connect_here(self) -> socket.socket | None:
        if self._local is None:
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(self._local))
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            connection.close()
            return None  # slurm-gpudbd runs on another host, or is starting
        except OSError:
            connection.close()
            raise
        return connection


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and return the answer; raise OSError on failure, or ValueError if it is too long."""
    # The server may answer with an error before it has read everything.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(request)
    deadline = time.monotonic() + ANSWER_WITHIN_S
    answer = bytearray()
    while piece := connection.recv(_PIECE_BYTES):
        answer += piece
        if len(answer) > MAX_REPLY_BYTES:
            raise ValueError(f"the answer is longer than {MAX_REPLY_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return bytes(answer)


def parse_reply(answer: bytes) -> Reply:
    """Parse an HTTP/1.x answer; raise ValueError if it is malformed or truncated."""
    head, blank, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    protocol, _, rest = lines[0].partition(" ")
    if not (blank and protocol.startswith("HTTP/1.") and rest[:3].isdecimal()):
        raise ValueError(f"the answer is not HTTP: {answer[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", str(len(body)))
    if "transfer-encoding" in headers or not length.isdecimal() or int(length) > len(body):
        raise ValueError("the answer is truncated")
    return Reply(int(rest[:3]), body[: int(length)], headers.get("retry-after"))


class ThreadSender:
    """Runs the blocking `post` in a thread and calls `wake` when the reply is available.

    The thread is a daemon thread, so that a hung server does not prevent the process from exiting.
    """

    def __init__(self, post: Callable[[bytes], Reply], wake: Callable[[], None]) -> None:
        self._post, self._wake = post, wake
        self._bodies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="post", daemon=True).start()

    def send(self, body: bytes) -> None:
        """Pass the body to the thread."""
        self._bodies.put(body)

    def reply(self) -> Reply | None:
        """Return the reply from the thread, or None if there is none yet."""
        try:
            return self._replies.get_nowait()
        except queue.Empty:
            return None

    def _run(self) -> None:
        outage = OutageLog(
            log, "a shipment could not be sent: %s", SystemClock(), over="shipments are sent again"
        )
        while True:
            body = self._bodies.get()
            try:
                reply = self._post(body)
                outage.worked()
            except Exception as error:  # without a reply, the caller sends nothing more
                outage.failed(error)
                reply = Reply(0, failure=f"{type(error).__name__}: {error}")
            self._replies.put(reply)
            self._wake()


class DirectSender:
    """Posts bodies and waits for the replies; used by --once and --print."""

    def __init__(self, post: Callable[[bytes], Reply]) -> None:
        self._post = post
        self._reply: Reply | None = None

    def send(self, body: bytes) -> None:
        """Post the body and keep the reply."""
        self._reply = self._post(body)

    def reply(self) -> Reply | None:
        """Return the reply to the last body."""
        reply, self._reply = self._reply, None
        return reply
