"""An attack on the ingest server affects only its sender."""

import gc
import socket
import struct
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from slurm_gpu.database.ingest.ingest_server import IngestConnection
from tests.database.running_server import Running, shipment
from tests.database.test_daemon import wait_for
from tests.database.test_ingest_server import answered, request

LARGE = 300_000


@contextmanager
def connected(server: Running, *pieces: bytes) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        yield connection


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["weakref.ref[IngestConnection]"]]:
    """Collect connections without the garbage collector."""
    seen: list[weakref.ref[IngestConnection]] = []
    readable = IngestConnection.readable

    def noted(visit: IngestConnection) -> None:
        readable(visit)
        seen.append(weakref.ref(visit))

    monkeypatch.setattr(IngestConnection, "readable", noted)
    gc.disable()
    yield seen
    gc.enable()


def test_memory_of_requests_is_released_immediately(
    server: Running, visits: list["weakref.ref[IngestConnection]"]
) -> None:
    whole = request(server, bytes(LARGE))
    assert b" 400 " in answered(server, request(server, b"no gzip"))
    assert b" 401 " in answered(server, whole.replace(b"MUNGE:", b"MUNGE: no", 1))
    with connected(server, whole[:-5]):
        wait_for(lambda: any(one() is not None for one in visits), lambda: "nobody came")
    assert b" 401 " in answered(server, b"GET /v1/live HTTP/1.0\r\n\r\n")
    wait_for(lambda: all(one() is None for one in visits), lambda: f"{visits} are still there")


@pytest.mark.parametrize("cut", [3, 30])
def test_a_second_request_changes_nothing_of_the_first(
    server: Running, visits: list["weakref.ref[IngestConnection]"], cut: int
) -> None:
    whole = request(server, shipment(records=[]), version="1.1")
    second = b"POST /v1/node HTTP/1.1\r\nContent-Length: 3\r\nContent-Encoding: none\r\n\r\nabc"
    with connected(server, whole[:-cut]) as connection:
        wait_for(lambda: bool(visits), lambda: "nobody came")
        connection.sendall(whole[-cut:] + second)
        came = connection.recv(65536)
    assert came.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in came


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"post /v1/node HTTP/1.1\r\nHost: x\r\n\r\n", b" 400 "),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b" 400 "),
        (
            b"POST /v1/node HTTP/1.1\r\nAuthorization: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
            b" 400 ",
        ),
        (b"POST /v1/node HTTP/1.1\r\nAuthorization: a\r\nContent-Length: 1, 1\r\n\r\n{}", b" 400 "),
        (b"POST /v1/node HTTP/1.1\r\nAuthorization: a\r\nContent-Length: -1\r\n\r\n", b" 400 "),
        (b"POST /v1/node HTTP/1.1\r\nContent-Length : 1\r\nAuthorization: a\r\n\r\n1", b" 400 "),
        (
            b"POST /v1/node HTTP/1.1\r\nAuthorization: a\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/live HTTP/1.1\r\n\r\n",
            b" 400 ",
        ),
        (b"POST /v1/node HTTP/1.1\r\nAuthorization: a\0b\r\nContent-Length: 0\r\n\r\n", b" 400 "),
        (b"POST /v1/\0node HTTP/1.1\r\n\r\n", b" 400 "),
        (b"CONNECT dbhost:443 HTTP/1.1\r\nHost: dbhost\r\n\r\n", b" 400 "),
        (b"OPTIONS * HTTP/1.0\r\n\r\n", b" 404 "),
        (b"POST http://dbhost/v1/node HTTP/1.0\r\nContent-Length: 0\r\n\r\n", b" 401 "),
        (b"GET /v1/live HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", b" 401 "),
        (b"POST /v1/node HTTP/1.0\r\nAuthorization: MUNGE \xe9\r\nContent-Length: 0\r\n\r\n", b" 401 "),
        (
            b"POST /v1/node HTTP/1.0\r\nAuthorization: MUNGE x\r\nContent-Length: "
            + b"0" * 5000
            + b"\r\n\r\n",
            b" 413 ",
        ),
    ],
)
def test_foreign_requests_are_rejected_once(server: Running, sent: bytes, status: bytes) -> None:
    came = answered(server, sent)
    assert status in came[:30]
    assert came.count(b"HTTP/1.1 ") == 1


def test_few_requests_may_come_before_the_first_is_answered(server: Running) -> None:
    one = b"GET /v1/live HTTP/1.1\r\nHost: dbhost\r\n\r\n"
    last = b"GET /v1/live HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert answered(server, one * 15 + last).count(b"HTTP/1.1 401 ") == 16
    came = answered(server, one * 1000 + last)
    assert came.count(b"HTTP/1.1 401 ") <= 17
    assert b"HTTP/1.1 400 " in came


def test_a_credential_is_accepted_only_once_on_either_path(server: Running) -> None:
    one = request(server, shipment(records=[]))
    other = one.replace(b"\r\nHost:", b"\r\nContent-Encoding: gzip\r\nHost:", 1)
    with connected(server, one) as short, connected(server, other) as long:
        came = sorted(side.recv(100).split(b"\r\n")[0].split()[1] for side in (short, long))
    assert came == [b"200", b"401"]


def test_a_thousand_that_give_up_leave_no_descriptor(server: Running) -> None:
    whole = request(server, shipment(records=[]))
    open_before = n_descriptors()
    reset = struct.pack("ii", 1, 0)
    for n in range(1000):
        with connected(server, whole[: n % len(whole)]) as connection:
            if n % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    assert b" 200 " in answered(server, whole)
    wait_for(lambda: n_descriptors() <= open_before, lambda: f"{n_descriptors()}, and {open_before} before")


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
