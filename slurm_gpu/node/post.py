"""One POST to slurm-gpudbd: over HTTP, in a thread of its own so that a hung server holds up nothing."""

from __future__ import annotations

import http.client
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from slurm_gpu.errors import MungeError
from slurm_gpu.munge import request_digest

TARGET = "/v1/node"
TIMEOUT_S = 20.0
MAX_REPLY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: an HTTP status with body, or `failure` (status 0) when nothing did."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    failure: str = ""


class Sender(Protocol):
    """Takes one body at a time."""

    def send(self, body: bytes) -> None:
        """Begin to send a gzipped body; not to be called again before `reply` has given its reply."""

    def reply(self) -> Reply | None:
        """The reply to the last body once it is there, given once; never waits."""


class HttpPost:
    """POSTs a body; `url` is slurm-gpudbd's base address, `credential` MUNGE's for a payload."""

    def __init__(self, url: str, source_address: str | None, credential: Callable[[bytes], str]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "localhost", parts.port or 80
        self._source = (source_address, 0) if source_address is not None else None
        self._credential = credential

    def __call__(self, body: bytes) -> Reply:
        """Send and wait, for at most about TIMEOUT_S per step."""
        try:
            credential = self._credential(request_digest("POST", TARGET, body))
        except MungeError as error:
            return Reply(0, failure=str(error))
        headers = {
            "Authorization": f"MUNGE {credential}",
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
            "Connection": "close",
        }
        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=TIMEOUT_S, source_address=self._source
        )
        try:
            connection.request("POST", TARGET, body, headers)
            response = connection.getresponse()
            return Reply(response.status, response.read(MAX_REPLY_BYTES), response.getheader("Retry-After"))
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, failure=f"{self._host}:{self._port}: {error or type(error).__name__}")
        finally:
            connection.close()


class ThreadSender:
    """Runs a blocking post in a thread and calls `wake` when the reply is there.

    The thread is a daemon: a server that hangs does not keep the process from ending.
    """

    def __init__(self, post: Callable[[bytes], Reply], wake: Callable[[], None]) -> None:
        self._post, self._wake = post, wake
        self._bodies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="post", daemon=True).start()

    def send(self, body: bytes) -> None:
        """Hand the body to the thread."""
        self._bodies.put(body)

    def reply(self) -> Reply | None:
        """What the thread brought back, if it did."""
        try:
            return self._replies.get_nowait()
        except queue.Empty:
            return None

    def _run(self) -> None:
        while True:
            reply = self._post(self._bodies.get())
            self._replies.put(reply)
            self._wake()


class DirectSender:
    """Posts at once and waits for the reply: for a single pass, and for printing."""

    def __init__(self, post: Callable[[bytes], Reply]) -> None:
        self._post = post
        self._reply: Reply | None = None

    def send(self, body: bytes) -> None:
        """Post and keep the reply."""
        self._reply = self._post(body)

    def reply(self) -> Reply | None:
        """The reply to the last body."""
        reply, self._reply = self._reply, None
        return reply
