"""slurm-gpuweb asks in the name of who signed in there: nobody else can, and it gains nothing by it."""

import json
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu import munge
from slurm_gpu.database.client import DatabaseClient
from slurm_gpu.errors import UsageError
from tests.database.running import NOBODY, OPERATOR, ROOT, WEB, Running, acting_as, shipment
from tests.database.samples import T0

pytestmark = pytest.mark.skipif(not ROOT, reason="becoming another user needs root")

_NAME = {uid: pwd.getpwuid(uid).pw_name for uid in (0, WEB, NOBODY, OPERATOR)}
_REQUEST = b'{"account": "vision", "partition": "gpu", "gpus": 1, "n_nodes": 1, "duration_s": 60, "why": "x"}'
_DECISION = (
    b'{"decisions": [{"id": "00000000000000000000000000000000", "at_s": 1, "host": "h", "asked": "submit", '
    b'"verdict": "deny", "uid": 1}]}'
)


def ask(
    server: Running,
    uid: int,
    name: str,
    method: str = "GET",
    target: str = "/v1/runs",
    body: bytes = b"",
    signed_for: str | None = None,
) -> tuple[int, Any]:
    """Status and answer of a request by `uid` in the name of `name`; signed for that name, or another."""
    with acting_as(uid):
        digest = munge.request_digest(method, target, body, name if signed_for is None else signed_for)
        credential = munge.encode(digest, server.munge_socket)
    headers = {"Authorization": f"MUNGE {credential}", munge.SPEAKS_FOR: name}
    return server.raw(method, target, body, headers)


def _is_shown_in_full(answer: Any) -> bool:
    full: bool = answer["runs"][0]["full"]
    return full


def test_it_sees_all_in_its_own_name(server: Running) -> None:
    status, answer = server.asked_by(WEB, "GET", "/v1/runs")
    assert (status, _is_shown_in_full(answer)) == (200, True)


@pytest.mark.parametrize(("uid", "full"), [(NOBODY, False), (OPERATOR, True)])
def test_in_a_users_name_it_sees_what_they_see(server: Running, uid: int, full: bool) -> None:
    status, answer = ask(server, WEB, _NAME[uid])
    assert (status, _is_shown_in_full(answer)) == (200, full)


@pytest.mark.parametrize("uid", [0, NOBODY, OPERATOR])
def test_nobody_else_speaks_for_others(server: Running, uid: int) -> None:
    status, answer = ask(server, uid, _NAME[OPERATOR])
    assert (status, "web_user" in answer["error"]) == (403, True)


@pytest.mark.parametrize("signed_for", [_NAME[NOBODY], ""])
def test_who_changes_the_name_on_the_way_has_no_credential_for_it(server: Running, signed_for: str) -> None:
    assert ask(server, WEB, _NAME[OPERATOR], signed_for=signed_for)[0] == 401


def test_a_credential_without_a_name_is_good_for_none(server: Running) -> None:
    with acting_as(WEB):
        headers = server.signed("GET", "/v1/runs")
    assert server.raw("GET", "/v1/runs", b"", {**headers, munge.SPEAKS_FOR: _NAME[OPERATOR]})[0] == 401


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/node", b"{}"),
        ("/v1/reservations", _REQUEST),
        ("/v1/reservations/1", b'{"act": "deny", "why": "x"}'),
        ("/v1/controller", _DECISION),
    ],
)
def test_in_its_own_name_it_changes_nothing(server: Running, target: str, body: bytes) -> None:
    before = server.contents()
    assert server.asked_by(WEB, "POST", target, body)[0] == 403
    assert server.contents() == before


@pytest.mark.parametrize("host", ["x/v1/controller?", "["])
def test_what_host_it_calls_us_by_does_not_matter(server: Running, host: str) -> None:
    with acting_as(WEB):
        headers = server.signed("POST", "/v1/reservations", _REQUEST, Host=host)
    assert server.raw("POST", "/v1/reservations", _REQUEST, headers)[0] == 403


@pytest.mark.parametrize("target", ["/v1/node", "/v1/controller"])
def test_not_even_in_roots_name_does_it_ship(server: Running, target: str) -> None:
    before = server.contents()
    body = shipment() if target == "/v1/node" else b'{"audit": []}'
    # The short way in of nodes knows nobody who is spoken for: there the credential is for another request.
    assert ask(server, WEB, "root", "POST", target, body)[0] in (401, 403)
    assert server.contents() == before


def test_in_a_users_name_it_may_do_what_they_may(server: Running) -> None:
    status, answer = ask(server, WEB, _NAME[NOBODY], "POST", "/v1/reservations", _REQUEST)
    assert (status, answer["reservation"]["user"]) == (200, _NAME[NOBODY])
    deny = b'{"act": "deny", "why": "x"}'
    number = answer["reservation"]["id"]
    assert ask(server, WEB, _NAME[NOBODY], "POST", f"/v1/reservations/{number}", deny)[0] == 403


def test_it_tells_of_acts_and_the_audit_says_that_it_did(server: Running) -> None:
    act = {"id": "a" * 32, "at_s": T0, "host": "web", "act": "notice sent", "subject": "17", "why": "idle"}
    status, _ = server.asked_by(WEB, "POST", "/v1/controller", json.dumps({"audit": [act]}).encode())
    assert status == 200
    _, answer = server.asked_by(WEB, "GET", "/v1/audit")
    assert [one["who"] for one in answer["audit"] if one["id"] == "a" * 32] == [_NAME[WEB]]


def test_a_name_that_nobody_has_is_refused(server: Running) -> None:
    status, answer = ask(server, WEB, "no-such-user")
    assert (status, answer["error"]) == (403, "there is no user 'no-such-user' on slurm-gpudbd's host")


@pytest.mark.parametrize("over_unix", [True, False])
def test_the_client_speaks_for_a_user_and_goes_on_for_itself(server: Running, over_unix: bool) -> None:
    config = server.config
    if not over_unix:
        config = replace(config, database_socket=Path("/nonexistent"))
    with DatabaseClient(config) as client, acting_as(WEB):
        assert [run.full for run in client.speaking_for(_NAME[NOBODY]).runs().runs] == [False]
        assert [run.full for run in client.runs().runs] == [True]
        for name in ("", "al ice\n", "älice", " alice"):
            with pytest.raises(UsageError, match="is no user's name"):
                client.speaking_for(name)
