"""Peers that exhaust connections, threads and time limits of the real server."""

import contextlib
import http.client
import socket
import threading
from dataclasses import replace
from select import select
from typing import Any
from urllib.parse import urlsplit

import pytest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.server import LIMITS
from slurm_gpu.database.ingest import posts
from slurm_gpu.database.ingest import storage_threads as storers
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.http import connection_limits
from tests.database.running_server import Running, shipment
from tests.database.samples import CLUSTER, FakeClock


def test_no_node_can_take_all_threads(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body, gzipped = shipment(), {"Content-Encoding": "gzip"}
    under_way, go_on = threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        under_way.set()
        assert go_on.wait(20)
        return parse_shipment(*given)

    def ship() -> tuple[int, Any]:
        return server.raw("POST", "/v1/node", body, server.signed("POST", "/v1/node", body, **gzipped))

    monkeypatch.setattr(posts, "SHIPMENTS_OF_AN_ADDRESS", 1)
    monkeypatch.setattr(storers, "parse_shipment", slowly)
    first: list[int] = []
    thread = threading.Thread(target=lambda: first.append(ship()[0]))
    thread.start()
    assert under_way.wait(20)
    assert ship() == (429, {"error": "1 shipments from 127.0.0.1 are still in progress"})
    go_on.set()
    thread.join()
    assert first == [200]
    assert ship()[0] == 200


def test_a_silent_peer_is_disconnected(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "request_within_s", 0.2)
    url = urlsplit(server.config.database)
    with socket.create_connection((url.hostname, url.port), timeout=10) as mute:
        mute.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert mute.recv(1) == b""


def test_no_peer_can_take_all_connections(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "most_of_sender", 5)
    url = urlsplit(server.config.database)
    many = [socket.create_connection((url.hostname, url.port), timeout=10) for _ in range(6)]
    try:
        with contextlib.suppress(ConnectionResetError):
            assert many[-1].recv(1) == b""  # over the limit
        with DatabaseClient(server.config) as client:  # another user, over the Unix socket
            assert client.health().cluster == CLUSTER
    finally:
        for connection in many:
            connection.close()


@pytest.mark.parametrize(
    ("request_head", "more"),
    [
        (b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        (b"POST /v1/node HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", b"x"),
        (b"POST /v1/node HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nab"),
    ],
    ids=["an empty line", "a body's beginning", "a chunk's beginning"],
)
def test_an_invalid_second_request_is_disconnected(
    server: Running, monkeypatch: pytest.MonkeyPatch, request_head: bytes, more: bytes
) -> None:
    """Test that received data does not extend a request's time limit, which would keep connections open."""
    monkeypatch.setattr(LIMITS, "request_within_s", 0.2)
    url = urlsplit(server.config.database)
    with socket.create_connection((url.hostname, url.port), timeout=10) as holder:
        holder.sendall(request_head)
        answer = http.client.HTTPResponse(holder)
        answer.begin()
        assert (answer.status, answer.read()[:1]) == (401, b"{")
        holder.sendall(more)
        with contextlib.suppress(ConnectionResetError):
            assert holder.recv(1) == b""


def test_a_client_that_reads_no_answers_is_disconnected(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "unread_ms", 200)
    url = urlsplit(server.config.database)
    asks = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000_000
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        deaf.settimeout(10)
        deaf.connect((url.hostname, url.port))
        with pytest.raises(ConnectionError):  # the test's own timeout raises another error
            deaf.sendall(asks)


@pytest.mark.parametrize("n_peers", [1, 5, 50])
def test_greedy_peers_leave_connections_for_others(n_peers: int) -> None:
    connected = [0] * n_peers
    while True:
        before = list(connected)
        for peer in range(n_peers):
            free = LIMITS.connections - sum(connected) - 1
            connected[peer] += connected[peer] + 1 <= LIMITS.most(free)
        if connected == before:
            break
    assert max(connected) <= LIMITS.most_of_sender
    assert LIMITS.connections - sum(connected) >= {1: 3800, 5: 3000, 50: 250}[n_peers]


def test_a_peer_may_have_fewer_connections_when_few_are_free(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "connections", 9)
    monkeypatch.setattr(LIMITS, "always_of_sender", 1)
    url = urlsplit(server.config.database)
    with contextlib.ExitStack() as stack:
        many = [
            stack.enter_context(socket.create_connection((url.hostname, url.port), timeout=10))
            for _ in range(3)
        ]
        with contextlib.suppress(ConnectionResetError):
            assert many[-1].recv(1) == b""
        other = stack.enter_context(
            socket.create_connection((url.hostname, url.port), timeout=10, source_address=("127.0.0.2", 0))
        )
        other.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
        assert b" 401 " in other.recv(100)


def test_thousands_that_are_refused_are_a_line_in_the_log(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LIMITS, "most_of_sender", 0)
    clock = FakeClock()
    monkeypatch.setattr(server.http_server.senders, "_crowded", OutageLog(connection_limits.log, "%s", clock))
    url = urlsplit(server.config.database)
    for _ in range(50):
        with (
            contextlib.suppress(ConnectionResetError),
            socket.create_connection((url.hostname, url.port), timeout=10) as refused,
        ):
            assert refused.recv(1) == b""
    assert caplog.messages == ["127.0.0.1 has more than 0 connections"]


def test_connections_over_the_limit_wait_and_are_answered_in_order(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that clients wait, because a refusal costs as much as an answer and refused clients retry."""
    monkeypatch.setattr(LIMITS, "connections", 2)
    url = urlsplit(server.config.database)
    body, answers = shipment(records=[]), list[int]()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection((url.hostname, url.port), timeout=10))
        with DatabaseClient(server.config) as client:  # over the Unix socket, which has separate limits
            assert client.health().cluster == CLUSTER
        waiting = [threading.Thread(target=lambda: answers.append(server.post(body)[0])) for _ in range(5)]
        for thread in waiting:
            thread.start()
        waiting[0].join(0.2)  # no client is admitted meanwhile
        assert answers == []
    for thread in waiting:
        thread.join()
    assert answers == [200] * 5


def test_connections_of_workers_are_bounded_too(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.http_server, "limits", replace(server.http_server.limits, connections=1))
    request = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers = [socket.create_connection(listener.getsockname(), timeout=20) for _ in range(2)]
        for _ in peers:
            server.http_server.adopt(listener.accept()[0], request)
        with peers[0], peers[1]:
            assert peers[0].recv(100).startswith(b"HTTP/1.1 401 ")
            assert peers[1].recv(100) == b""


def test_a_connection_that_waited_too_long_is_closed_and_the_next_answered(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a client about to time out is not served, because the next one would then time out too."""
    monkeypatch.setattr(LIMITS, "connections", 1)
    monkeypatch.setattr(LIMITS, "backlog_s", 0.3)
    url = urlsplit(server.config.database)
    with socket.create_connection((url.hostname, url.port), timeout=10) as holder:
        early = socket.create_connection((url.hostname, url.port), timeout=10)
        early.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
        assert not select([holder], [], [], 0.4)[0]  # wait on the kernel's clock
        late = socket.create_connection((url.hostname, url.port), timeout=10)
        late.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
    with early, late:
        assert b" 401 " in late.recv(100)
        with contextlib.suppress(ConnectionResetError):
            assert early.recv(100) == b""


def test_a_request_whose_head_has_no_end_is_cut_off(server: Running) -> None:
    url = urlsplit(server.config.database)
    with socket.create_connection((url.hostname, url.port), timeout=10) as chatty:
        with contextlib.suppress(ConnectionError):
            chatty.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n")
            for _ in range(1000):
                chatty.sendall(b"X-More: " + b"x" * 10_000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert chatty.recv(1) == b""
