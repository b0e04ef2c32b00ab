"""Sign-in to slurm-gpuweb is possible only by links and by a reverse proxy."""

import json
import logging
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.monitor.page.files import page_files
from slurm_gpu.monitor.settings import SessionSettings
from slurm_gpu.monitor.signin.rights import KEPT_S, Right
from slurm_gpu.monitor.signin.tokens import GOOD_FOR_S, TOKENS_OF_A_USER
from tests.monitor.signin.signed_in_site import ACTS, ELSEWHERE, HEADER, PROXY, SETTINGS, URL, Gate

ME = pwd.getpwuid(0).pw_name


@pytest.fixture
def gate(munge_socket: str) -> Gate:
    return Gate(munge_socket)


def _with_name(name: str) -> dict[str, str]:
    return {HEADER: name}


def test_the_page_for_signing_in_has_the_links_of_the_site(gate: Gate) -> None:
    page = gate.ask("GET", "/signin").text
    assert "LINKS" not in page
    assert "Contact" not in page
    gate.started(contact="https://help.example.org", documentation="https://docs.example.org")
    page = gate.ask("GET", "/signin").text
    assert '<a href="https://help.example.org">Contact</a>' in page
    assert '<a href="https://docs.example.org">Documentation</a>' in page


# By a link


def test_a_link_signs_its_caller_in_once(gate: Gate) -> None:
    assert gate.who() is None
    token = gate.token()
    answer = gate.use(token)
    assert (answer.status_code, answer.json()) == (200, {"user": ME})
    assert gate.who() == ME
    other = Gate.__new__(Gate)
    other.__dict__ = {**gate.__dict__, "cookies": {}}
    assert other.use(token).status_code == 401
    assert other.who() is None


def test_the_token_is_in_the_fragment_of_the_url(gate: Gate) -> None:
    link = gate.link().json()
    assert link["url"].startswith(f"{URL}/signin#")
    assert link["until_s"] == int(gate.here.clock.wall() + GOOD_FOR_S)


def test_a_link_of_a_minute_ago_is_good_no_more(gate: Gate) -> None:
    token = gate.token()
    gate.here.clock.now += GOOD_FOR_S
    assert gate.use(token).status_code == 401


def test_only_the_latest_links_of_a_user_are_valid(gate: Gate) -> None:
    first = gate.token()
    for _ in range(TOKENS_OF_A_USER):
        gate.token()
    assert gate.use(first).status_code == 401


def test_a_credential_makes_one_link_and_is_replayed_in_vain(gate: Gate) -> None:
    body = json.dumps({"web": URL}).encode()
    headers = gate.credential(body)
    assert gate.ask("POST", "/signin", headers=headers, body=body).status_code == 200
    assert gate.ask("POST", "/signin", headers=headers, body=body).status_code == 401


@pytest.mark.parametrize(
    ("method", "target", "signed"),
    [
        ("GET", "/signin", None),
        ("POST", "/v1/runs", None),
        ("POST", "/signin", b""),
        ("POST", "/signin", b'{"web": "https://elsewhere.example.org"}'),
    ],
)
def test_a_credential_of_another_request_makes_none(
    gate: Gate, method: str, target: str, signed: bytes | None
) -> None:
    body = json.dumps({"web": URL}).encode()
    headers = gate.credential(body if signed is None else signed, method, target)
    assert gate.ask("POST", "/signin", headers=headers, body=body).status_code == 401


def test_a_credential_that_was_meant_for_another_page_makes_none_here(gate: Gate) -> None:
    answer = gate.link("https://evil.example.org")
    assert answer.status_code == 403
    assert "the credential is for https://evil.example.org" in answer.json()["error"]


def test_without_an_address_of_its_own_it_takes_no_credential(munge_socket: str) -> None:
    gate = Gate(munge_socket, replace(SETTINGS, url=None))
    for web in (URL, "https://evil.example.org"):
        answer = gate.link(web)
        assert answer.status_code == 403
        assert "web: in slurm-gpu.yaml on its host" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "MUNGE nonsense"}, {"Authorization": "Basic eDp5"}]
)
def test_without_a_credential_there_is_no_link(gate: Gate, headers: dict[str, str]) -> None:
    answer = gate.ask("POST", "/signin", headers=headers, body=b'{"web": "x"}')
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "MUNGE")


def test_while_munged_is_down_no_user_is_called_unknown(munge_socket: str) -> None:
    gate = Gate(munge_socket)
    body = json.dumps({"web": URL}).encode()
    headers = gate.credential(body)
    gate.config = replace(gate.config, munge_socket="/nonexistent")
    gate.started()
    assert gate.ask("POST", "/signin", headers=headers, body=body).status_code == 503


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b'{"token": 5}', 400), (b"[" * 3000, 400), (b" " * 5000, 413)],
)
def test_an_invalid_token_is_refused(gate: Gate, body: bytes, status: int) -> None:
    assert gate.ask("POST", "/signin/token", headers=ACTS, body=body).status_code == status


def test_a_link_does_not_change_the_signed_in_user(gate: Gate) -> None:
    # Otherwise the sender of a link could silently sign in another user as the sender.
    gate.use(gate.token())
    sessions = gate.cookies
    gate.cookies = {}
    name, value = _session_of_bob(gate)
    gate.cookies = {name: value}
    answer = gate.use(gate.token())
    assert (answer.status_code, answer.json()["error"]) == (403, "you are signed in as bobx: sign out first")
    gate.cookies = sessions
    assert gate.use(gate.token()).status_code == 200


def _session_of_bob(gate: Gate) -> tuple[str, str]:
    guard = gate.app
    session = guard._sessions.begin("bobx", 1002)
    return guard._cookie.name, guard._sessions.seal(session)


# The session


def test_the_cookie_is_kept_from_scripts_other_sites_and_the_open_wire(gate: Gate) -> None:
    cookie = gate.use(gate.token()).headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert name == "__Host-slurm-gpu"
    assert rest.split("; ")[1:] == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict", "Secure"]


@pytest.mark.parametrize(
    ("url", "path", "secure"),
    [("http://gpu.example.org:6830", "Path=/", False), ("https://example.org/gpu", "Path=/gpu", True)],
)
def test_it_is_bound_to_the_address_of_the_page(munge_socket: str, url: str, path: str, secure: bool) -> None:
    gate = Gate(munge_socket, replace(SETTINGS, url=url))
    token = gate.link(url).json()["url"].partition("#")[2]
    parts = gate.use(token).headers["set-cookie"].split("; ")
    assert parts[0].startswith("slurm-gpu=")
    assert (path in parts, "Secure" in parts) == (True, secure)


@pytest.mark.parametrize("kind", ["changed", "cut", "foreign", "empty", "doubled"])
def test_a_cookie_that_was_not_made_here_opens_nothing(gate: Gate, kind: str) -> None:
    gate.use(gate.token())
    ((name, value),) = gate.cookies.items()
    body, _, signature = value.partition(".")
    forged = {
        "changed": f"{body[:-2]}AA.{signature}",
        "cut": body,
        "foreign": Gate(gate.munge_socket).app._sessions.seal(  # type: ignore[attr-defined]
            gate.app._sessions.open(value)  # type: ignore[attr-defined]
        ),
        "empty": "",
        "doubled": f"{value}.{signature}",
    }[kind]
    gate.cookies = {name: forged}
    assert gate.who() is None


def test_it_ends_when_unused_and_continues_while_used(gate: Gate) -> None:
    gate.use(gate.token())
    for _ in range(5):
        gate.here.clock.now += 3600
        assert gate.who() == ME
    gate.here.clock.now += SETTINGS.session.idle_s
    assert gate.who() is None


def test_it_ends_after_its_lifetime_however_much_it_is_used(gate: Gate) -> None:
    gate.use(gate.token())
    for _ in range(11):
        gate.here.clock.now += 3600
        assert gate.who() == ME
    gate.here.clock.now += 3600
    assert gate.who() is None


def test_signing_out_invalidates_every_copy_of_the_cookie(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.use(gate.token())
    copy = dict(gate.cookies)
    with caplog.at_level(logging.INFO):
        assert gate.ask("POST", "/signout", headers=ACTS).status_code == 204
    assert gate.cookies == {}
    assert f"{ME} signed out from {ELSEWHERE}" in caplog.text
    gate.cookies = copy
    assert gate.who() is None


def test_a_restart_ends_sessions_unless_the_key_is_in_a_file(gate: Gate, tmp_path: Path) -> None:
    gate.use(gate.token())
    gate.started()
    assert gate.who() is None
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    gate.started(session=SessionSettings(key_file=key))
    gate.use(gate.token())
    gate.started(session=SessionSettings(key_file=key))
    assert gate.who() == ME


def test_a_revoked_session_remains_invalid_after_a_restart(gate: Gate, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    gate.started(session=SessionSettings(key_file=key), state=tmp_path)
    gate.use(gate.token())
    copy = dict(gate.cookies)
    assert gate.ask("POST", "/signout", headers=ACTS).status_code == 204
    gate.use(gate.token())
    gate.started(session=SessionSettings(key_file=key), state=tmp_path)
    assert gate.who() == ME
    gate.cookies = copy
    assert gate.who() is None


def test_publicly_cacheable_answers_set_no_session_cookie(gate: Gate) -> None:
    gate.use(gate.token())
    gate.here.clock.now += SETTINGS.session.idle_s / 2
    old = dict(gate.cookies)
    for path in (*page_files(), "/signin", "/signin/signin.js", "/openapi.json", "/api/v1/layout", "/none"):
        gate.cookies = dict(old)
        answer = gate.ask("GET", path, headers={"If-None-Match": '"x"'})
        kept = answer.headers["cache-control"]
        assert ("set-cookie" in answer.headers) == ("private" in kept or "no-store" in kept), path


# By a reverse proxy


def test_a_trusted_proxy_names_the_user(gate: Gate) -> None:
    assert gate.who(sender=PROXY, headers=_with_name("dave")) == "dave"
    assert gate.who(sender=f"::ffff:{PROXY}", headers=_with_name("dave")) == "dave"
    assert gate.who(sender=PROXY) is None


def test_from_anywhere_else_its_header_is_ignored_and_logged(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    forwarded = {"X-Forwarded-For": PROXY, "Forwarded": f"for={PROXY}", "X-Real-IP": PROXY}
    with caplog.at_level(logging.WARNING):
        for sender in (ELSEWHERE, "127.0.0.1", "10.0.0.8", "::1", ""):
            assert gate.who(sender=sender, headers={**_with_name("carol"), **forwarded}) is None
    assert f"it was sent by {ELSEWHERE}" in caplog.text
    gate.use(gate.token())
    assert gate.who(headers=_with_name("carol")) == ME


@pytest.mark.parametrize("name", ["", "a b", "al,ice", "alice\tbob", "-alice", "x" * 300, "\xfcber"])
def test_an_invalid_name_is_no_user(gate: Gate, name: str) -> None:
    answer = gate.ask("GET", "/api/v1/me", sender=PROXY, headers={HEADER: name.encode("latin-1")})
    assert answer.status_code == 401


def test_a_header_that_came_twice_is_no_user(gate: Gate) -> None:
    headers = [(HEADER, "carol"), (HEADER, "dave")]
    answer = gate.ask("GET", "/api/v1/me", sender=PROXY, headers=headers)
    assert answer.status_code == 401


def test_without_a_trusted_proxy_user_headers_are_ignored(munge_socket: str) -> None:
    gate = Gate(munge_socket, replace(SETTINGS, trusted_proxies=(), user_header=None))
    assert gate.who(sender=PROXY, headers=_with_name("carol")) is None


# Rights


@pytest.mark.parametrize(("name", "operator"), [("carol", True), ("dave", False), ("root", False)])
def test_operators_are_those_of_the_site_file(gate: Gate, name: str, operator: bool) -> None:
    answer = gate.ask("GET", "/api/v1/me", sender=PROXY, headers=_with_name(name))
    assert answer.json()["operator"] is operator


def test_a_former_operator_loses_the_role_after_a_while(gate: Gate) -> None:
    def operator() -> bool:
        return bool(
            gate.ask("GET", "/api/v1/me", sender=PROXY, headers=_with_name("carol")).json()["operator"]
        )

    assert operator()
    gate.app._rights._ask = lambda _: Right(None, False)
    assert operator(), "it is refreshed each minute"
    gate.here.clock.now += 2 * KEPT_S
    assert not operator()


def test_a_name_that_was_given_to_another_user_ends_the_session_of_who_had_it(gate: Gate) -> None:
    gate.use(gate.token())
    assert gate.who() is not None
    gate.app._rights._ask = lambda _: Right(4242, True)
    gate.here.clock.now += 3 * KEPT_S
    assert gate.who() is None


def test_while_the_directory_of_users_is_down_who_is_signed_in_stays(gate: Gate) -> None:
    gate.use(gate.token())
    gate.app._rights._ask = lambda _: Right(None, False)
    gate.here.clock.now += 3 * KEPT_S
    assert gate.who() is not None


def test_root_by_a_credential_is_an_operator(gate: Gate) -> None:
    gate.use(gate.token())
    assert gate.ask("GET", "/api/v1/me").json()["operator"] is True


# Requests that another site's page might send


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/signout", "/signin/token", "/api/v1/me", "/"])
def test_requests_other_than_get_need_the_x_slurm_gpu_header(gate: Gate, method: str, path: str) -> None:
    for headers in ({}, {"X-Slurm-Gpu": "0"}, {"Content-Type": "text/plain"}):
        answer = gate.ask(method, path, headers=headers)
        assert (answer.status_code, "X-Slurm-Gpu: 1" in answer.json()["error"]) == (403, True)


def test_signed_out_by_another_sites_form_is_impossible(gate: Gate) -> None:
    gate.use(gate.token())
    assert gate.ask("POST", "/signout").status_code == 403
    assert gate.who() == ME


# The log


def test_the_log_contains_user_and_address_but_no_secret(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        token = gate.token()
        gate.use(token)
    assert f"{ME} signed in from {ELSEWHERE}" in caplog.text
    for secret in (token, *gate.cookies.values()):
        assert secret not in caplog.text
