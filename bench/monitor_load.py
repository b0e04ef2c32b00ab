"""Provide clients of slurm-gpuweb that are so cheap that two processors suffice to load the server fully."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    head_bytes: int
    seconds: float


def get(port: int, path: str, headers: dict[str, str] | None = None) -> Answer:
    """Send one request on its own connection."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(_request(path, {**(headers or {}), "Connection": "close"}))
        text = b"".join(iter(lambda: connection.recv(1 << 18), b""))
    head, _, body = text.partition(_END_OF_HEAD)
    first, *lines = head.decode("latin-1").split("\r\n")
    received = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), received, body, len(head), time.perf_counter() - began)


def requests_per_s(port: int, path: str, headers: dict[str, str], connections: int, seconds: float) -> float:
    """Return the rate of complete answers with status 200, over persistent connections."""
    request = _request(path, headers)
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    missing: dict[int, int] = {}
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[connection.fileno()] = connection
        missing[connection.fileno()] = 0
        poll.register(connection.fileno(), select.EPOLLIN)
        connection.sendall(request)
    n = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        for number, _ in poll.poll(1.0):
            connection = sockets[number]
            some = connection.recv(1 << 18)
            if missing[number]:
                missing[number] -= len(some)
            else:
                missing[number] = _missing_bytes(some)
            if not missing[number]:
                n += 1
                connection.sendall(request)
    for connection in sockets.values():
        connection.close()
    return n / (now - began)


class Listeners:
    """Clients of server-sent events, on one thread."""

    def __init__(self, port: int, path: str, n: int, headers: dict[str, str]) -> None:
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self.n_events = 0
        for _ in range(n):
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
            connection.sendall(_request(path, {**headers, "Accept": "text/event-stream"}))
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def listen(self, seconds: float) -> Iterator[bytes]:
        """Return the received events; raises RuntimeError if a stream ends."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for number, _ in self._poll.poll(min(left, 1.0)):
                some = self._sockets[number].recv(1 << 16)
                if not some:
                    raise RuntimeError("slurm-gpuweb ended a stream of events")
                self.n_events += some.count(b"event: state")
                yield some

    def close(self) -> None:
        """Close all connections."""
        for connection in self._sockets.values():
            connection.close()


def _request(path: str, headers: dict[str, str]) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def _missing_bytes(some: bytes) -> int:
    """Return the number of bytes of an answer that are still missing; `some` contains the whole head."""
    head, end, body = some.partition(_END_OF_HEAD)
    if not end or not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"not an answer with a body: {some[:200]!r}")
    lowered = head.lower()
    at = lowered.index(b"content-length: ") + len(b"content-length: ")
    return int(lowered[at:].split(b"\r", 1)[0]) - len(body)
