"""Request bodies use bounded memory for any announced length."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from slurm_gpu.database.ingest import body_budget as bodies_module
from slurm_gpu.database.ingest.body_budget import BodyBudget
from tests.database.running_server import Running, shipment
from tests.database.samples import FakeClock
from tests.database.test_daemon import wait_for
from tests.database.test_ingest_server import request

KIB = 1 << 10
PIECE = 100 * KIB
MOST = 2 << 20
# A repeated header is left to the web framework.
SHORT_WAY, LONG_WAY = "", "Content-Encoding: gzip"


@pytest.fixture(autouse=True)
def _small_body_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_module, "MOST_BYTES", MOST)
    monkeypatch.setattr(bodies_module, "_ALWAYS_OF_A_PEER", PIECE)


def head(n_bytes: int, way: str) -> bytes:
    lines = ["POST /v1/node HTTP/1.1", "Host: dbhost", "Authorization: MUNGE MUNGE:x:"]
    lines += ["Content-Encoding: gzip", f"Content-Length: {n_bytes}", way]
    return "\r\n".join([line for line in lines if line]).encode() + b"\r\n\r\n"


@contextlib.contextmanager
def senders(server: Running, n: int, way: str, sent: int = PIECE) -> Iterator[list[socket.socket]]:
    """Open connections from distinct addresses, which send the beginning of 1 MiB and wait."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(sender(server, f"127.0.1.{number}", way, sent)) for number in range(1, n)]


@contextlib.contextmanager
def sender(
    server: Running, address: str, way: str, sent: int, promised: int = 1 << 20
) -> Iterator[socket.socket]:
    with socket.create_connection(
        ("127.0.0.1", server.port), timeout=20, source_address=(address, 0)
    ) as connection:
        connection.sendall(head(promised, way) + bytes(sent))
        yield connection


def answer(connection: socket.socket) -> bytes:
    came = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            came += piece
            if b"}" in piece:
                break
    return came


def ship(server: Running, way: str) -> bytes:
    """The response to a valid node."""
    more = [way] if way else []
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request(server, shipment(records=[]), *more))
        return answer(connection)


@pytest.mark.parametrize("way", [SHORT_WAY, LONG_WAY])
def test_many_slow_senders_take_no_more_than_there_is_for_all(server: Running, way: str) -> None:
    with senders(server, 60, way) as connections:
        wait_for(lambda: server.bodies.n_bytes > MOST - PIECE, lambda: f"{server.bodies.n_bytes} bytes")
        assert server.bodies.n_bytes <= MOST
        with sender(server, "127.0.0.7", way, 1 << 20) as late:
            came = answer(late)
        assert b" 503 " in came[:20]
        assert b"retry-after: 10" in came.lower()
        # Rejected senders receive the answer once they have sent the announced bytes.
        connections[-1].sendall(bytes((1 << 20) - PIECE))
        assert answer(connections[-1])[9:12] in (b"503", b"429")
    wait_for(lambda: server.bodies.n_bytes == 0, lambda: f"{server.bodies.n_bytes} bytes are left")
    assert b" 200 " in ship(server, way)[:20]


@pytest.mark.parametrize("way", [SHORT_WAY, LONG_WAY])
def test_one_peer_takes_a_part_of_what_is_left(server: Running, way: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(sender(server, "127.0.1.1", way, PIECE))
        wait_for(lambda: server.bodies.n_bytes >= 3 * PIECE, lambda: f"{server.bodies.n_bytes} bytes")
        one_more = stack.enter_context(sender(server, "127.0.1.1", way, 1 << 20))
        came = answer(one_more)
        assert b" 429 " in came[:20]
        assert b"retry-after: 10" in came.lower()
        assert server.bodies.n_bytes <= MOST // 4 + PIECE
        assert b" 200 " in ship(server, way)[:20]


@pytest.mark.parametrize("way", [SHORT_WAY, LONG_WAY])
def test_an_announced_length_takes_no_memory_from_others(server: Running, way: str) -> None:
    with senders(server, 60, way, sent=0):
        assert b" 200 " in ship(server, way)[:20]
        wait_for(lambda: server.bodies.n_bytes == 0, lambda: f"{server.bodies.n_bytes} bytes")


def test_answered_and_aborted_requests_release_their_memory(server: Running) -> None:
    for way in (SHORT_WAY, LONG_WAY):
        with sender(server, "127.0.1.1", way, PIECE):
            pass
        assert b" 200 " in ship(server, way)[:20]
        with sender(server, "127.0.1.2", way, PIECE, promised=PIECE) as unknown:
            assert b" 401 " in answer(unknown)[:20]
    wait_for(lambda: server.bodies.n_bytes == 0, lambda: f"{server.bodies.n_bytes} bytes are left")


def test_a_refused_body_stays_refused_and_releases_its_memory() -> None:
    bodies = BodyBudget(FakeClock())
    body = bodies.begin("n1")
    assert body.grow(PIECE)
    assert not body.grow(MOST)
    assert bodies.n_bytes == 0
    assert not body.grow(1)
    body.close()
    assert bodies.n_bytes == 0
