"""Test the real server over real sockets, with real MUNGE credentials."""

import contextlib
import gzip
import http.client
import json
import socket
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.client.database_client import DatabaseClient, MungeAuth
from slurm_gpu.daemon.outage_log import AGAIN_S
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.ingest import posts
from slurm_gpu.database.ingest import storage_threads as storers
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.errors import SlurmError
from slurm_gpu.http.identity import Authenticator, Caller
from slurm_gpu.wire.headers import MAX_BODY_BYTES
from tests.database.running_server import NOBODY, OPERATOR, ROOT, Running, acting_as, shipment
from tests.database.samples import record, segment


def test_a_node_ships_with_munge(server: Running) -> None:
    with server.http(auth=MungeAuth(server.munge_socket)) as client:
        answer = client.post("/v1/node", content=shipment(), headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200, answer.text
    value = answer.json()
    assert value["stored"] + value["stale"] == 1
    assert value["rejected"] == []


def test_the_address_is_the_connections_and_no_headers(server: Running) -> None:
    forged = shipment(records=[record(node="n2", segment=segment(66)).to_wire()])
    headers = {"Content-Encoding": "gzip", "X-Forwarded-For": "127.0.1.2", "Forwarded": "for=127.0.1.2"}
    with server.http(auth=MungeAuth(server.munge_socket)) as client:
        answer = client.post("/v1/node", content=forged, headers=headers).json()
    assert answer["rejected"][0]["why"].startswith("127.0.0.1 is not an address of n2")


def test_a_record_is_in_the_database_before_it_is_acknowledged(server: Running) -> None:
    body = shipment(records=[record(node="here", segment=segment(n)).to_wire() for n in range(100, 110)])
    before = server.contents()["run_device"]
    status, answer = server.raw(
        "POST", "/v1/node", body, server.signed("POST", "/v1/node", body, **{"Content-Encoding": "gzip"})
    )
    assert (status, answer["stored"]) == (200, 10)
    assert server.contents()["run_device"] == before + 10


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_other_users_read_their_part_and_ship_nothing(server: Running) -> None:
    ask = server.asked_by
    before = server.contents()
    refused = ask(NOBODY, "POST", "/v1/node", b'{"wire": 1, "node": "here", "records": []}')
    assert refused == (403, {"error": "only root and SlurmUser may send shipments"})
    status, answer = ask(NOBODY, "GET", "/v1/runs")
    assert (status, answer["runs"][0]["name"], answer["runs"][0]["full"]) == (200, None, False)
    status, answer = ask(OPERATOR, "GET", "/v1/runs")
    assert (status, answer["runs"][0]["name"]) == (200, "secret")
    assert ask(OPERATOR, "POST", "/v1/node", b"{}")[0] == 403
    assert server.contents() == before


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_the_kernel_vouches_on_the_unix_socket(server: Running) -> None:
    for request, expected in (
        (b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b'"full":false'),
        (b"POST /v1/node HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", b" 403 "),
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            with acting_as(NOBODY):
                connection.connect(str(server.config.database_socket))
            connection.sendall(request)
            assert expected in b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_credential_counts_once_and_for_one_request(server: Running) -> None:
    good = server.signed("GET", "/v1/runs?limit=1")
    assert server.raw("GET", "/v1/runs?limit=1", b"", good)[0] == 200
    status, answer = server.raw("GET", "/v1/runs?limit=1", b"", good)
    assert (status, answer["error"]) == (401, "MUNGE: Replayed credential")
    for method, target, body in (
        ("GET", "/v1/runs?limit=2", b""),
        ("GET", "/v1/runs", b""),
        ("GET", "/v1/runs?limit=1&user=bob", b""),
        ("GET", "/v1//runs?limit=1", b""),
        ("HEAD", "/v1/runs?limit=1", b""),
        ("GET", "/v1/runs?limit=1", b"x"),
    ):
        headers = server.signed("GET", "/v1/runs?limit=1")
        assert server.raw(method, target, body, headers)[0] in (401, 404), (method, target)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "MUNGE",
        "MUNGE ",
        "Basic cm9vdDo=",
        "Bearer x",
        "MUNGE x",
        "MUNGE:",
        "MUNGE MUNGE:AAAA:",
        "MUNGE " + "A" * 9000,
        "MUNGE MUNGE:" + "A" * 60_000 + ":",
    ],
)
@pytest.mark.parametrize(
    "method_and_path",
    [
        *(
            "GET /v1/health",
            "GET /v1/runs",
            "GET /v1/runs/1",
            "POST /v1/node",
            "GET /v1/live",
            "GET /v1/nodes",
        ),
        *("GET /v1/runs/1/timeline", "GET /v1/runs/1/window"),
    ],
)
def test_without_a_good_credential_nothing_is_answered(
    server: Running, authorization: str | None, method_and_path: str
) -> None:
    before = server.contents()
    method, path = method_and_path.split()
    headers = {} if authorization is None else {"Authorization": authorization}
    status, answer = server.raw(method, path, shipment(), {**headers, "Content-Encoding": "gzip"})
    assert status == 401
    assert set(answer) == {"error"}
    assert server.contents() == before


@pytest.mark.parametrize(
    ("method", "target", "body", "more", "status"),
    [
        ("GET", "/v1/node", b"", {}, 405),
        ("PUT", "/v1/node", b"", {}, 405),
        ("DELETE", "/v1/runs", b"", {}, 405),
        ("POST", "/v1/runs", b"", {}, 405),
        ("GET", "/", b"", {}, 404),
        ("GET", "/v1/runs/1/../../node", b"", {}, 404),
        ("GET", "/v1/runs/x", b"", {}, 400),
        ("GET", "/v1/runs/%00", b"", {}, 400),
        ("GET", "/v1/runs?limit=1&limit=2", b"", {}, 400),
        ("GET", "/v1/runs?%ff=%fe", b"", {}, 400),
        ("GET", "/v1/runs/77", b"", {}, 404),
        ("GET", "/v1/runs/77/timeline", b"", {}, 404),
        ("GET", "/v1/runs/77/window", b"", {}, 404),
        ("GET", "/v1/runs/x/window", b"", {}, 400),
        ("POST", "/v1/live", b"", {}, 405),
        ("POST", "/v1/node", b"", {}, 400),
        ("POST", "/v1/node", b"{}", {"Content-Encoding": "gzip"}, 400),
        ("POST", "/v1/node", b'{"wire": 9, "node": "n"}', {}, 426),
        ("POST", "/v1/node", b" " * (MAX_BODY_BYTES + 1), {}, 413),
        ("POST", "/v1/node", gzip.compress(b" " * (17 << 20), mtime=0), {"Content-Encoding": "gzip"}, 413),
        ("POST", "/v1/node", b"[" * 100_000, {}, 400),
        ("POST", "/v1/node", b'{"wire":1,"node":"n","records":[NaN]}', {}, 400),
        ("POST", "/v1/node", b'{"wire":1e999,"node":"n"}', {}, 400),
        ("POST", "/v1/node", b'{"wire":1,"node":"\\ud800"}', {}, 400),
    ],
)
def test_a_wrong_request_of_the_right_sender_is_refused(
    server: Running, method: str, target: str, body: bytes, more: dict[str, str], status: int
) -> None:
    before = server.contents()
    assert server.raw(method, target, body, server.signed(method, target, body, **more))[0] == status
    assert server.contents() == before


def test_a_chunked_body_is_bound_by_the_same_limit(server: Running) -> None:
    good = shipment()
    headers = server.signed("POST", "/v1/node", good, **{"Content-Encoding": "gzip"})
    assert server.raw("POST", "/v1/node", iter([good[:10], good[10:]]), headers)[0] == 200
    endless = (b"x" * 65536 for _ in range(64))
    try:
        status, _ = server.raw("POST", "/v1/node", endless, server.signed("POST", "/v1/node"))
    except (ConnectionError, http.client.HTTPException):
        return  # closed while we were still sending: refused as well
    assert status == 413


@settings(max_examples=60)
@given(
    st.binary(max_size=300)
    | st.text(max_size=200).map(lambda t: f"GET /{t} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
)
def test_no_bytes_on_the_wire_stop_the_server_or_change_a_thing(server: Running, sent: bytes) -> None:
    before = server.contents()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert not answer or answer.split(b" ")[1][:1] == b"4"
    assert server.contents() == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(
            ["wire", "node", "version", "records", "hosts", "devices", "windows", "live", "open", "x"]
        ),
        json_values,
    )
)
def test_any_json_of_the_right_sender_is_answered(server: Running, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    status, answer = server.raw("POST", "/v1/node", body, server.signed("POST", "/v1/node", body))
    assert status in (200, 400, 413, 426), answer
    assert status != 200 or answer["stored"] == 0


def test_an_abandoned_shipment_is_not_read(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that disconnected clients cause no work, which would delay many waiting requests."""
    busy, go_on, read = threading.Barrier(posts.READERS + 1), threading.Event(), list[bytes]()

    def vouch(authenticator: Authenticator, *request: Any) -> Caller:
        if not go_on.is_set():
            busy.wait(20)
            assert go_on.wait(20)
        return by_credential(authenticator, *request)

    def parse(body: bytes, encoding: str) -> Any:
        read.append(body)
        return parse_shipment(body, encoding)

    def begin(body: bytes) -> socket.socket:
        headers = server.signed("POST", "/v1/node", body, **{"Content-Encoding": "gzip"})
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        text = f"POST /v1/node HTTP/1.0\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        connection.sendall(text.encode() + body)
        return connection

    by_credential = Authenticator.by_credential
    monkeypatch.setattr(Authenticator, "by_credential", vouch)
    monkeypatch.setattr(posts, "SHIPMENTS_OF_AN_ADDRESS", 2 * posts.READERS)
    monkeypatch.setattr(storers, "parse_shipment", parse)
    first, gone, last = (shipment(records=[], version=name) for name in ("first", "gone", "last"))
    with contextlib.ExitStack() as stack:
        for _ in range(posts.READERS):
            stack.enter_context(begin(first))
        busy.wait(20)
        begin(gone).close()
        waits = stack.enter_context(begin(last))
        with DatabaseClient(server.config) as client:
            client.health()  # after this answer disconnected clients are known
        go_on.set()
        assert b" 200 " in waits.recv(20)
    assert gone not in read
    assert last in read


def test_waiting_shipments_are_limited(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = shipment(records=[record(node="here", segment=segment(700)).to_wire()])
    before = server.contents()
    server.clock.now += AGAIN_S
    with monkeypatch.context() as small:
        small.setattr(storers, "WAITING_BYTES", len(gzip.decompress(body)) - 1)
        status, answer = server.post(body)
        assert (status, answer["error"]) == (503, "shipments of 0 MiB are already waiting to be stored")
        assert server.post(shipment(records=[]))[0] == 200, "live values do not wait"
    assert server.contents() == before
    assert "nodes must send again later: shipments of 0 MiB are already waiting to be stored" in caplog.text
    for _ in range(3):
        assert server.post(body)[0] == 200


def test_a_shipment_on_which_its_node_gave_up_is_not_stored(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a late shipment is not stored, because its node sends it again."""
    body = shipment(records=[record(node="here", segment=segment(701)).to_wire()])
    before = server.contents()

    def slowly(*given: Any) -> Any:
        server.clock.now += storers.WAITED_FOR_S + 1
        return parse_shipment(*given)

    monkeypatch.setattr(storers, "parse_shipment", slowly)
    status, answer = server.post(body)
    assert (status, answer["error"]) == (
        503,
        "a shipment waited for 21 s; its node no longer waits for the answer",
    )
    assert server.contents() == before


def test_a_node_is_asked_to_retry_only_before_anything_is_stored(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Test that nothing is stored if Slurm is unreachable when the sender is authorised."""

    def unknown(*_: object) -> Any:
        raise SlurmError("slurmctld does not answer")

    body = shipment(records=[record(node="here", segment=segment(702)).to_wire()])
    before = server.contents()
    server.clock.now += AGAIN_S
    monkeypatch.setattr(SlurmView, "may_speak", unknown)
    assert server.post(body)[0] == 503
    assert server.contents() == before
    assert "nodes must send again later: slurmctld does not answer" in caplog.text
