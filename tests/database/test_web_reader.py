"""slurm-gpuweb may read everything, but only from its own hosts, and not in the name of other users."""

import http.client
import ipaddress
import json
import logging
import pwd
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.http.request import FOR_USER
from slurm_gpu.errors import NotAllowedError
from slurm_gpu.http.web_reader import WebReader, warn_of_unknown_user
from slurm_gpu.wire.headers import READS_ALL, READS_HEADER
from tests.database.running_server import NOBODY, OPERATOR, ROOT, WEB, WEB_HOST, Running, acting_as, shipment
from tests.database.samples import T0

pytestmark = pytest.mark.skipif(not ROOT, reason="becoming another user needs root")

NAME = {uid: pwd.getpwuid(uid).pw_name for uid in (0, WEB, NOBODY, OPERATOR)}
ELSEWHERE = "127.0.0.9"
REQUEST = b'{"account": "vision", "partition": "gpu", "gpus": 1, "n_nodes": 1, "duration_s": 60, "why": "x"}'
DECISION = (
    b'{"decisions": [{"id": "00000000000000000000000000000000", "at_s": 1, "host": "h", '
    b'"operation": "submit", "verdict": "deny", "uid": 1}]}'
)


@pytest.fixture(autouse=True)
def _no_refusals_of_before(server: Running) -> Iterator[None]:
    yield
    server.clock.now += 601


def ask(
    server: Running,
    uid: int,
    address: str = "127.0.0.1",
    method: str = "GET",
    target: str = "/v1/runs",
    body: bytes = b"",
    **headers: str,
) -> tuple[int, Any]:
    """Return the status and answer of a request by `uid` from a given address."""
    with acting_as(uid):
        signed = server.signed(method, target, body)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10, source_address=(address, 0))
    try:
        connection.request(method, target, body, {**signed, **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def is_shown_in_full(answer: Any) -> bool:
    full: bool = answer["runs"][0]["full"]
    return full


NEEDS_ALL = {READS_HEADER: READS_ALL}


@pytest.mark.parametrize("address", ["127.0.0.1", WEB_HOST])
def test_it_reads_everything_from_its_hosts(server: Running, address: str) -> None:
    status, answer = ask(server, WEB, address, **NEEDS_ALL)
    assert (status, is_shown_in_full(answer)) == (200, True)


def test_its_uid_on_any_other_host_is_an_ordinary_user(server: Running) -> None:
    status, answer = ask(server, WEB, ELSEWHERE)
    assert (status, is_shown_in_full(answer)) == (200, False)


@pytest.mark.parametrize(
    ("uid", "address", "write"),
    [
        (WEB, ELSEWHERE, f"write web_hosts: [{WEB_HOST}/32, {ELSEWHERE}] into"),
        (NOBODY, WEB_HOST, f"write web_user: {NOBODY} into"),
        (NOBODY, ELSEWHERE, f"write web_user: {NOBODY} and web_hosts: [{WEB_HOST}/32, {ELSEWHERE}] into"),
    ],
)
def test_a_refusal_contains_the_required_setting_and_is_logged_once(
    server: Running, caplog: pytest.LogCaptureFixture, uid: int, address: str, write: str
) -> None:
    with caplog.at_level(logging.WARNING):
        answers = [ask(server, uid, address, **NEEDS_ALL) for _ in range(3)]
    assert {status for status, _ in answers} == {403}
    assert all(write in answer["error"] for _, answer in answers)
    assert [write in line for line in caplog.messages if "slurm-gpuweb" in line] == [True]


def test_the_health_names_refused_nodes_until_they_are_admitted_or_silent(server: Running) -> None:
    def refused() -> list[tuple[int, str]]:
        _, health = ask(server, 0, target="/v1/health")
        return [(one["uid"], one["address"]) for one in health["web_refused"]]

    ask(server, NOBODY, ELSEWHERE, **NEEDS_ALL)
    ask(server, WEB, ELSEWHERE, **NEEDS_ALL)
    assert refused() == [(NOBODY, ELSEWHERE), (WEB, ELSEWHERE)]
    server.clock.now += 599
    ask(server, WEB, ELSEWHERE, **NEEDS_ALL)
    server.clock.now += 2
    assert refused() == [(WEB, ELSEWHERE)]
    server.clock.now += 600
    assert refused() == []


@pytest.mark.parametrize("uid", [0, OPERATOR])
def test_a_caller_who_sees_all_is_not_refused(server: Running, uid: int) -> None:
    status, answer = ask(server, uid, ELSEWHERE, **NEEDS_ALL)
    assert (status, is_shown_in_full(answer)) == (200, True)


@pytest.mark.parametrize("uid", [0, WEB, NOBODY, OPERATOR])
@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v1/runs", b""),
        ("GET", "/v1/health", b""),
        ("POST", "/v1/node", shipment()),
        ("POST", "/v1/reservations", REQUEST),
        ("POST", "/v1/controller", b'{"audit": []}'),
    ],
)
def test_no_request_is_judged_as_another_users(
    server: Running, uid: int, method: str, target: str, body: bytes
) -> None:
    before = server.contents()
    more = {"Content-Encoding": "gzip"} if target == "/v1/node" else {}
    status, answer = ask(server, uid, "127.0.0.1", method, target, body, **{FOR_USER: NAME[OPERATOR]}, **more)
    assert (status, FOR_USER in answer["error"]) == (403, True)
    assert server.contents() == before


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/node", b"{}"),
        ("/v1/reservations", REQUEST),
        ("/v1/reservations/1", b'{"act": "deny", "why": "x"}'),
        ("/v1/controller", DECISION),
    ],
)
@pytest.mark.parametrize("address", ["127.0.0.1", WEB_HOST])
def test_it_changes_nothing(server: Running, address: str, target: str, body: bytes) -> None:
    before = server.contents()
    assert ask(server, WEB, address, "POST", target, body)[0] == 403
    assert server.contents() == before


@pytest.mark.parametrize("host", ["x/v1/controller?", "["])
def test_the_host_header_does_not_matter(server: Running, host: str) -> None:
    assert ask(server, WEB, WEB_HOST, "POST", "/v1/reservations", REQUEST, Host=host)[0] == 403


def test_it_reports_audit_events_and_the_audit_has_its_name(server: Running) -> None:
    act = {"id": "a" * 32, "at_s": T0, "host": "web", "action": "notice sent", "subject": "17", "why": "idle"}
    body = json.dumps({"audit": [act]}).encode()
    assert ask(server, WEB, WEB_HOST, "POST", "/v1/controller", body)[0] == 200
    _, answer = server.asked_by(WEB, "GET", "/v1/audit")
    assert [one["reported_by"] for one in answer["audit"] if one["id"] == "a" * 32] == [NAME[WEB]]


@pytest.mark.parametrize("over_unix", [True, False])
def test_the_client_that_needs_everything_gets_it_or_an_error(server: Running, over_unix: bool) -> None:
    config = server.config
    if not over_unix:
        config = replace(config, database_socket=Path("/nonexistent"))
    with acting_as(WEB), DatabaseClient(config, needs_all=True) as client:
        assert [run.full for run in client.runs().runs] == [True]
    refused = pytest.raises(NotAllowedError, match=f"write web_user: {NOBODY} into")
    with acting_as(NOBODY), DatabaseClient(config, needs_all=True) as client, refused:
        client.runs()
    with acting_as(NOBODY), DatabaseClient(config) as client:
        assert [run.full for run in client.runs().runs] == [False]


def test_a_uid_names_it_where_its_host_and_this_one_have_different_users() -> None:
    reader = WebReader(4711, (ipaddress.ip_network("10.0.0.0/24"),))
    assert reader.has_user(4711, None)
    assert not reader.has_user(4712, "4711")
    assert not WebReader("root").has_user(0, "root")
    assert not WebReader(None).has_user(4711, "slurm-gpu-web")


@pytest.mark.parametrize(
    ("user", "hosts", "logged"),
    [
        ("no-such-user", ("10.0.0.7",), True),
        ("no-such-user", (), True),
        ("slurm-gpu-web", (), False),
        ("slurm-gpu-web", ("10.0.0.7",), True),
        ("root", (), False),
        (4711, ("10.0.0.7",), False),
        (None, (), False),
    ],
)
def test_a_name_that_this_host_does_not_have_is_logged_at_start(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    user: str | int | None,
    hosts: tuple[str, ...],
    logged: bool,
) -> None:
    # The real host may have the user slurm-gpu-web, for example while a lab is up.
    root = pwd.getpwnam("root")
    monkeypatch.setattr(pwd, "getpwnam", {"root": root}.__getitem__)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_user(WebReader(user, tuple(map(ipaddress.ip_network, hosts))))
    assert bool(caplog.messages) == logged
