"""The ingest server answers any request, in any pieces, like the full HTTP stack."""

import contextlib
import socket

import pytest

from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest import ingest_server as ingest_server_module
from slurm_gpu.database.ingest.admission import Admission
from slurm_gpu.database.ingest.ingest_server import IngestConnection
from tests.database.running_server import Running, shipment
from tests.database.samples import record, segment


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the node addresses of shipments that the ingest server answered."""
    seen: list[str] = []
    result = IngestConnection.answer

    def noted(visit: IngestConnection, answer: bytes) -> None:
        seen.append(visit.address)
        result(visit, answer)

    monkeypatch.setattr(IngestConnection, "answer", noted)
    return seen


def request(
    server: Running, body: bytes, *more: str, target: str = "/v1/node", version: str = "1.0"
) -> bytes:
    signed = server.signed("POST", target, body, **{"Content-Encoding": "gzip"})
    lines = [
        f"POST {target} HTTP/{version}",
        "Host: dbhost",
        *(f"{name}: {is_}" for name, is_ in signed.items()),
    ]
    lines += [f"Content-Length: {len(body)}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def answered(server: Running, *pieces: bytes) -> bytes:
    """Send the pieces and return the whole answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        came = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                came += piece
        return came


@pytest.mark.parametrize("cut", [1, 10, 100, 300, 100_000])
def test_a_shipment_is_taken_however_it_is_cut(server: Running, taken: list[str], cut: int) -> None:
    records = [record(node="here", segment=segment(n)).to_wire() for n in range(8)]
    whole = request(server, shipment(records=records))
    came = answered(server, *(whole[start : start + cut] for start in range(0, len(whole), cut)))
    assert came.startswith(b"HTTP/1.1 200 ")
    assert b'"stored":8' in came or b'"stale":8' in came
    assert taken == ["127.0.0.1"]


def test_unusual_requests_get_the_same_answer_elsewhere(server: Running, taken: list[str]) -> None:
    body = shipment(records=[])
    for uncommon in ("Expect: 100-continue", "Content-Encoding: gzip"):
        came = answered(server, request(server, body, uncommon, "Connection: close", version="1.1"))
        assert b" 200 OK" in came
    head, _, rest = request(server, body, "Connection: close", version="1.1").partition(b"\r\n\r\n")
    chunked = head.replace(f"Content-Length: {len(body)}".encode(), b"Transfer-Encoding: chunked")
    came = answered(server, chunked + b"\r\n\r\n" + f"{len(rest):x}\r\n".encode() + rest + b"\r\n0\r\n\r\n")
    assert b" 200 OK" in came
    assert taken == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/node HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", b" 401 "),
        (b"POST /v1/node HTTP/1.0\r\nAuthorization: MUNGE x\r\nContent-Length: 2\r\n\r\n{}", b" 401 "),
        (b"POST /v1/node HTTP/1.0\r\nAuthorization: MUNGE x\r\nContent-Length: 99999999\r\n\r\n", b" 413 "),
        (b"GET /v1/node HTTP/1.0\r\nAuthorization: MUNGE x\r\n\r\n", b" 405 "),
        (b"POST /v1/nodes HTTP/1.0\r\nAuthorization: MUNGE x\r\nContent-Length: 2\r\n\r\n{}", b" 405 "),
        (b"GET /v1/health HTTP/1.0\r\n\r\n", b" 401 "),
        (b"\x16\x03\x01 this is no HTTP\r\n\r\n", b" 400 "),
    ],
)
def test_all_else_is_answered_as_ever(server: Running, sent: bytes, status: bytes, taken: list[str]) -> None:
    assert status in answered(server, sent)[:30]
    assert taken == []


def test_a_stalled_client_is_disconnected(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_server_module, "BODY_WITHIN_S", 0.1)
    whole = request(server, shipment(records=[]))
    assert answered(server, whole[:-5]) == b""


def test_a_rejected_shipment_gets_retry_after_by_either_server(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Admission) -> None:
        raise ShipmentError(503, "600 shipments are waiting", 7)

    body = shipment(records=[])
    before = server.contents()
    with monkeypatch.context() as busy:
        busy.setattr(Admission, "enter", full)
        for sent in (
            request(server, body),
            request(server, body, "Expect: 100-continue", "Connection: close"),
        ):
            came = answered(server, sent)
            assert b" 503 " in came
            assert b"\r\nretry-after: 7\r\n" in came.lower()
            assert b"600 shipments are waiting" in came
    assert server.contents() == before
    assert b" 200 " in answered(server, request(server, body))


def test_an_unreadable_body_is_rejected_with_a_reason(server: Running) -> None:
    came = answered(server, request(server, b"no gzip at all"))
    assert b" 400 " in came
    assert b"the body is not gzip" in came
