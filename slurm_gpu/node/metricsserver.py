"""Answers GET /metrics, in a thread of its own so that a slow client holds up nothing.

The thread does not look at the daemon's data: it asks for the text, wakes the loop, and sends what the loop
has written. Nothing is prepared that nobody asks for. http.server would cost 7 MB.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable

from slurm_gpu.errors import OutsideError

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_WITHIN_S = 2.0
# A loop that does not turn has no metrics.
_TEXT_WITHIN_S = 10.0
_REQUEST_BYTES = 8192
_BACKLOG = 16


class MetricsServer:
    """Listens from the start; `wake` ends the loop's wait, after which it is to call `answer`."""

    def __init__(self, host: str, port: int, wake: Callable[[], None]) -> None:
        """Raises OutsideError where it cannot listen there."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise OutsideError(
                f"metrics: cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        self._wake = wake
        self._asked = threading.Event()
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._listener.getsockname()[1])

    def answer(self, text: Callable[[], str]) -> None:
        """Hand out the text if somebody asked for it."""
        if not self._asked.is_set():
            return
        self._asked.clear()
        try:
            self._texts.put(text())
        except Exception:  # whoever looks on must not end the accounting
            log.exception("/metrics could not be written")
            self._texts.put(None)

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept() that waits
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                with client:
                    client.settimeout(_CLIENT_WITHIN_S)
                    client.sendall(self._response(_request_line(client)))
            except OSError as error:
                log.debug("a client of /metrics went away: %s", error)

    def _response(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != "/metrics":
            return _http("404 Not Found", "there is only /metrics\n")
        if method not in ("GET", "HEAD"):
            return _http("405 Method Not Allowed", "only GET\n")
        self._asked.set()
        self._wake()
        try:
            text = self._texts.get(timeout=_TEXT_WITHIN_S)
        except queue.Empty:
            return _http("503 Service Unavailable", "slurm-gpud is busy\n")
        if text is None:
            return _http("500 Internal Server Error", "slurm-gpud's log says why\n")
        return _http("200 OK", text, with_body=method == "GET")


def _request_line(client: socket.socket) -> str:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
        piece = client.recv(_REQUEST_BYTES)
        if not piece:
            break
        head += piece
    return head.partition(b"\r\n")[0].decode("latin-1")


def _http(status: str, text: str, *, with_body: bool = True) -> bytes:
    body = text.encode()
    head = f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + (body if with_body else b"")
