"""The real server over real sockets, with real MUNGE credentials."""

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import pwd
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from slurm_gpu import munge
from slurm_gpu.config import Operators, SiteConfig
from slurm_gpu.database import server as server_module
from slurm_gpu.database.accounting import run_row
from slurm_gpu.database.app import Services, make_app
from slurm_gpu.database.arrivals import Arrivals
from slurm_gpu.database.client import DatabaseClient, MungeAuth
from slurm_gpu.database.engine import Database
from slurm_gpu.database.identity import Authenticator
from slurm_gpu.database.importer import Importer, store_changed_runs
from slurm_gpu.database.intake import Intake
from slurm_gpu.database.nodememory import LiveBoard, Wants
from slurm_gpu.database.schema import metadata
from slurm_gpu.database.server import listen_unix, make_server
from slurm_gpu.database.settings import Address
from slurm_gpu.database.shipment import MAX_BODY_BYTES
from slurm_gpu.database.slurmview import SlurmView
from slurm_gpu.errors import DatabaseError, OutsideError, UsageError
from tests.database.samples import CLUSTER, FakeClock, MemorySlurm, node, record, row, segment

NOBODY = 65534
OPERATOR = 1  # Debian and RHEL know this user
ROOT = os.getuid() == 0


@dataclass
class Running:
    """A server in a thread of this process."""

    database: Database
    config: SiteConfig
    munge_socket: str

    @property
    def port(self) -> int:
        return Address("127.0.0.1", int(self.config.database.rpartition(":")[2])).port

    def contents(self) -> dict[str, int]:
        with self.database.reading() as connection:
            return {
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in metadata.sorted_tables
            }

    def http(self, **given: Any) -> httpx.Client:
        return httpx.Client(base_url=self.config.database, trust_env=False, **given)

    def raw(
        self, method: str, target: str, body: bytes | Iterator[bytes], headers: dict[str, str]
    ) -> tuple[int, Any]:
        """Status and decoded answer of one request, with nothing added to it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else text
        finally:
            connection.close()

    def signed(self, method: str, target: str, body: bytes = b"", **more: str) -> dict[str, str]:
        digest = munge.request_digest(method, target, body)
        return {"Authorization": f"MUNGE {munge.encode(digest, self.munge_socket)}", **more}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, short_path: Path, munge_socket: str
) -> Iterator[Running]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('http') / 'x.db'}")
    database.upgrade()
    clock = FakeClock()
    slurm = MemorySlurm()
    slurm.node_list.append(node(9, name="here", address="127.0.0.1"))
    view = SlurmView(slurm, clock)
    board, wants = LiveBoard(clock), Wants(clock)
    # The tests run as root, who ships, or as some user, who then stands in for SlurmUser.
    services = Services(
        cluster=CLUSTER,
        database=database,
        authenticator=Authenticator(
            Operators(users=(pwd.getpwuid(OPERATOR).pw_name,)), os.getuid, clock, munge_socket
        ),
        intake=Intake(database, view, CLUSTER, clock, board, wants),
        importer=Importer(database, view, clock, CLUSTER, 60.0),
        view=view,
        arrivals=Arrivals(clock),
        board=board,
        wants=wants,
        clock=clock,
    )
    tcp = socket.create_server(("127.0.0.1", 0))
    path = short_path / "gpudbd.sock"
    unix = listen_unix(path)
    uvicorn = make_server(make_app(services))
    thread = threading.Thread(target=lambda: asyncio.run(uvicorn.serve([tcp, unix])))
    thread.start()
    config = SiteConfig(
        cluster=CLUSTER,
        database=f"http://127.0.0.1:{tcp.getsockname()[1]}",
        database_socket=path,
        munge_socket=munge_socket,
    )
    database.write(lambda connection: store_changed_runs(connection, [run_row(row(name="secret"), {})]))
    yield Running(database, config, munge_socket)
    uvicorn.should_exit = True
    thread.join()
    database.dispose()


def shipment(**given: Any) -> bytes:
    return gzip.compress(
        json.dumps(
            {"wire": 1, "node": "here", "boot_id": "b", "records": [record(node="here").to_wire()], **given}
        ).encode()
    )


@pytest.fixture(params=["unix", "munge"])
def reached(request: pytest.FixtureRequest, server: Running) -> SiteConfig:
    if request.param == "unix":
        return server.config
    return replace(server.config, database_socket=Path("/nonexistent"))


def test_the_client_reads_the_same_by_socket_and_by_munge(server: Running, reached: SiteConfig) -> None:
    with DatabaseClient(reached) as client:
        assert client.where == (
            str(reached.database_socket) if reached is server.config else reached.database
        )
        health = client.health()
        assert (health.cluster, health.schema, health.wire) == (CLUSTER, "0002", (1, 1))
        assert [item.name for item in client.all_runs(limit=1)] == ["secret"]
        assert client.runs(user="bob").runs == ()
        assert [item.id for item in client.run("1")] == ["1"]
        assert client.run("99") == ()
        with pytest.raises(UsageError, match="limit"):
            client.runs(limit=0)
        with pytest.raises(UsageError, match="is not a job"):
            client.run("1 OR 1=1?x=&")


def test_a_munged_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    config = SiteConfig(cluster="x", database="http://127.0.0.1:1", database_socket=tmp_path / "none")
    silent = replace(config, munge_socket="/nonexistent")
    with DatabaseClient(silent) as client, pytest.raises(OutsideError, match="MUNGE"):
        client.health()


def test_an_address_where_nobody_listens_is_said_so(server: Running, tmp_path: Path) -> None:
    config = replace(server.config, database="http://127.0.0.1:1", database_socket=tmp_path / "none")
    with (
        DatabaseClient(config) as client,
        pytest.raises(DatabaseError, match=r"127\.0\.0\.1:1 cannot be reached"),
    ):
        client.health()


def test_a_killed_daemons_socket_is_not_taken_for_a_daemon(server: Running, short_path: Path) -> None:
    stale = short_path / "stale.sock"
    listen_unix(stale).close()
    assert stale.is_socket()
    with DatabaseClient(replace(server.config, database_socket=stale)) as client:
        assert client.where == server.config.database
    with pytest.raises(OutsideError, match="already listens"):
        listen_unix(server.config.database_socket)
    listen_unix(stale).close()


def test_an_answer_that_is_not_ours_is_an_error(short_path: Path) -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    path = short_path / "other.sock"
    uvicorn = make_server(other)
    listener = listen_unix(path)
    thread = threading.Thread(target=lambda: asyncio.run(uvicorn.serve([listener])))
    thread.start()
    try:
        config = SiteConfig(cluster="x", database_socket=path)
        with DatabaseClient(config) as client, pytest.raises(DatabaseError, match="is that slurm-gpudbd"):
            client.health()
    finally:
        uvicorn.should_exit = True
        thread.join()


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


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """With the effective ids of another user, which is what the kernel tells a peer."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_other_users_read_their_part_and_ship_nothing(server: Running) -> None:
    def ask(uid: int, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        with acting_as(uid):
            headers = server.signed(method, target, body)
        return server.raw(method, target, body, headers)

    before = server.contents()
    refused = ask(NOBODY, "POST", "/v1/node", b'{"wire": 1, "node": "here", "records": []}')
    assert refused == (403, {"error": "only root and SlurmUser ship records"})
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
    "method_and_path", ["GET /v1/health", "GET /v1/runs", "GET /v1/runs/1", "POST /v1/node"]
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
        ("POST", "/v1/node", b"", {}, 400),
        ("POST", "/v1/node", b"{}", {"Content-Encoding": "gzip"}, 400),
        ("POST", "/v1/node", b'{"wire": 9, "node": "n"}', {}, 426),
        ("POST", "/v1/node", b" " * (MAX_BODY_BYTES + 1), {}, 413),
        ("POST", "/v1/node", gzip.compress(b" " * (17 << 20)), {"Content-Encoding": "gzip"}, 413),
        ("POST", "/v1/node", b"[" * 100_000, {}, 400),
        ("POST", "/v1/node", b'{"wire":1,"node":"n","records":[NaN]}', {}, 400),
        ("POST", "/v1/node", b'{"wire":1e999,"node":"n"}', {}, 400),
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


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["wire", "node", "boot_id", "records", "hosts", "live", "x"]), json_values
    )
)
def test_any_json_of_the_right_sender_is_answered(server: Running, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    status, answer = server.raw("POST", "/v1/node", body, server.signed("POST", "/v1/node", body))
    assert status in (200, 400, 426), answer
    assert status != 200 or answer["stored"] == 0


def test_a_peer_that_says_nothing_is_let_go(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_REQUEST_WITHIN_S", 0.2)
    url = urlsplit(server.config.database)
    with socket.create_connection((url.hostname, url.port), timeout=10) as mute:
        mute.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert mute.recv(1) == b""


def test_no_peer_can_take_all_connections(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_CONNECTIONS_OF_A_PEER", 5)
    url = urlsplit(server.config.database)
    many = [socket.create_connection((url.hostname, url.port), timeout=10) for _ in range(6)]
    try:
        with contextlib.suppress(ConnectionResetError):
            assert many[-1].recv(1) == b""  # one too many
        with DatabaseClient(server.config) as client:  # somebody else, over the Unix socket
            assert client.health().cluster == CLUSTER
    finally:
        for connection in many:
            connection.close()
