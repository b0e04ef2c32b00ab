"""Answer GET /metrics in a separate thread for each client, so that a slow client blocks no other client.

The threads do not access the daemon's data. Each thread requests the text, wakes the main loop, and sends the
text that the main loop creates. Importing http.server would take 7 MB.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable

from slurm_gpu.clock import SystemClock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The timeout for receiving a client's request, and for sending the answer.
_CLIENT_WITHIN_S = 2.0
# The maximum number of concurrent clients; further clients wait.
_CLIENTS = 8
_LEAST_WAIT_S = 1e-3
# Maximum wait for the text from the main loop.
_TEXT_WITHIN_S = 10.0
_REQUEST_BYTES = 8192
_BACKLOG = 16


class MetricsServer:
    """Serves /metrics; `wake` ends the main loop's wait, so that the loop calls `answer`."""

    def __init__(self, host: str, port: int, wake: Callable[[], None]) -> None:
        """Start listening; raise OutsideError if the address cannot be used."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise OutsideError(
                f"metrics: cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        self._wake = wake
        # One queue per waiting client, for the text or, if it could not be created, None.
        self._asked: queue.SimpleQueue[queue.SimpleQueue[str | None]] = queue.SimpleQueue()
        self._places = threading.BoundedSemaphore(_CLIENTS)
        self._outage = OutageLog(
            log, "/metrics could not be written: %s", SystemClock(), over="/metrics is written again"
        )
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port on which the server listens."""
        return int(self._listener.getsockname()[1])

    def answer(self, text: Callable[[], str]) -> None:
        """If clients are waiting, create the text and pass it to them."""
        waiting = []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._asked.get_nowait())
        if not waiting:
            return
        try:
            written = text()
            self._outage.worked()
        except Exception as error:  # must not stop the recording
            self._outage.failed(error)
            written = None
        for place in waiting:
            place.put(written)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the blocked accept()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._places.acquire()
            threading.Thread(target=self._serve, args=(client,), name="scrape", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                response = self._response(_request_line(client))
                client.settimeout(_CLIENT_WITHIN_S)
                client.sendall(response)
        except OSError as error:
            log.debug("a client of /metrics disconnected: %s", error)
        finally:
            self._places.release()

    def _response(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != "/metrics":
            return _http("404 Not Found", "only /metrics is available\n")
        if method not in ("GET", "HEAD"):
            return _http("405 Method Not Allowed", "only GET\n")
        place: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._asked.put(place)
        self._wake()
        try:
            text = place.get(timeout=_TEXT_WITHIN_S)
        except queue.Empty:
            return _http("503 Service Unavailable", "slurm-gpud is busy\n")
        if text is None:
            return _http("500 Internal Server Error", "see the log of slurm-gpud for the reason\n")
        return _http("200 OK", text, with_body=method == "GET")


def _request_line(client: socket.socket) -> str:
    head = b""
    deadline_s = time.monotonic() + _CLIENT_WITHIN_S
    while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
        client.settimeout(max(_LEAST_WAIT_S, deadline_s - time.monotonic()))
        piece = client.recv(_REQUEST_BYTES)
        if not piece:
            break
        head += piece
    return head.partition(b"\r\n")[0].decode("latin-1")


def _http(status: str, text: str, *, with_body: bool = True) -> bytes:
    body = text.encode()
    head = f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + (body if with_body else b"")
