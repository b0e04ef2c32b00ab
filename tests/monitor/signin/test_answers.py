"""Answers make browsers run only our own scripts, and show viewers only what they may see."""

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.routing import Route

from slurm_gpu.monitor.http.headers import HEADERS, POLICY
from slurm_gpu.monitor.http.server import make_server
from slurm_gpu.monitor.routes import ROUTES
from tests.monitor.signin.signed_in_site import ACTS, HEADER, PROXY, SETTINGS, Gate

_SAFE = dict(HEADERS)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


def _as(name: str) -> dict[str, str]:
    return {HEADER: name}


# Permissions of the browser


async def _fail(_: object) -> Response:
    raise RuntimeError("a mistake of ours")


async def _lax(_: object) -> Response:
    return Response("x", headers={"Content-Security-Policy": "default-src *"})


@pytest.fixture(scope="module")
def served() -> Iterator[httpx.Client]:
    """Start slurm-gpuweb's server with this host as its trusted proxy."""
    here = (ipaddress.ip_network("127.0.0.1"),)
    gate = Gate(settings=replace(SETTINGS, trusted_proxies=here))
    routes = gate.app._app.router.routes  # type: ignore[attr-defined]
    routes += [Route("/fail", _fail), Route("/lax", _lax)]
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server(gate.app)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    # uvicorn closes the connection after an internal error, so each request has its own connection.
    fresh = httpx.Limits(max_keepalive_connections=0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=url, trust_env=False, headers=ACTS, limits=fresh) as client:
        yield client
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("user", [None, "dave", "carol"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "BREW"])
@pytest.mark.parametrize(
    "path",
    [
        *(route.path.replace("{job}", "1") for route in ROUTES if "events" not in route.path),
        *("/", "/signin", "/signin/signin.js", "/signin/none", "/signout", "/none", "/api/v1/jobs/x"),
        *("/api/v1/frame?metric=none", "/fail"),
    ],
)
def test_every_answer_has_a_strict_security_policy(
    served: httpx.Client, path: str, method: str, user: str | None
) -> None:
    answer = served.request(method, path, headers={} if user is None else _as(user))
    policies = answer.headers.get_list("content-security-policy")
    assert policies[0] == POLICY
    assert not any("unsafe" in policy for policy in policies)
    assert all(answer.headers[name].startswith(value) for name, value in _SAFE.items())
    assert "mistake" not in answer.text


def test_an_invalid_request_is_answered_with_the_security_policy(served: httpx.Client) -> None:
    with socket.create_connection((served.base_url.host, served.base_url.port or 80), 10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert POLICY.encode() in said


_LINES = (
    b"GET /\xff\xfe HTTP/1.1",
    b"GET /api/v1/jobs?since=\xff HTTP/1.1",
    b"GET /api/v1/jobs/%00 HTTP/1.1",
    b"GET /api/v1/frame?" + b"&" * 30_000 + b" HTTP/1.1",
    b"GET " + b"/a" * 30_000 + b" HTTP/1.1",
    b"GET http://x/api/v1/me HTTP/1.1",
    b"GET * HTTP/1.1",
    b"GET //api/v1/me HTTP/1.1",
    b"CONNECT x:1 HTTP/1.1",
    b"GET /signin/../api/v1/me HTTP/1.1",
    b"GET /api/v1/me;x HTTP/1.1",
    b"GET / HTTP/9.9",
    b"PRI * HTTP/2.0",
    b"GET /api/v1/jobs/1%2f..%2f..%2fme HTTP/1.1",
)
_HEADS = (
    b"X-Remote-User : carol",
    b" X-Remote-User: carol",
    b"X_Remote_User: carol",
    b"X-Remote-User: caro\x00l",
    b"X-Forwarded-User: carol",
    b"Cookie: __Host-slurm-gpu=" + b"A" * 30_000,
    b"Cookie: =;;;\xff=\xff; x",
    b"If-None-Match: " + b'"x",' * 5000,
    b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    b"Content-Length: -1",
    b"Accept-Encoding: " + b"gzip;q=0," * 3000,
    b"Expect: 100-continue",
)


@pytest.mark.parametrize(
    ("line", "head"),
    [*((line, b"X: y") for line in _LINES), *((b"GET /api/v1/me HTTP/1.1", head) for head in _HEADS)],
)
def test_odd_requests_are_refused_and_let_no_user_in(served: httpx.Client, line: bytes, head: bytes) -> None:
    with socket.create_connection((served.base_url.host, served.base_url.port or 80), 10) as connection:
        connection.sendall(line + b"\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n\r\n")
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while some := connection.recv(65536):
                said += some
    assert not said or said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), said[:200]
    assert b"carol" not in said
    if said.startswith(b"HTTP/1.1 200"):
        assert b"<!doctype html>" in said, "a page without anything in it"


def test_an_invalid_host_header_does_not_change_the_path(served: httpx.Client) -> None:
    for host in ("[", "x/api/v1/me?", "a b"):
        answer = served.get("/none", headers={"Host": host})
        assert (answer.status_code, answer.headers["content-security-policy"]) in (
            (404, POLICY),
            (400, POLICY),
        )


def test_no_part_of_the_application_can_allow_more(served: httpx.Client) -> None:
    # If an answer has several policies, a browser applies all of them.
    assert served.get("/lax").headers.get_list("content-security-policy") == [POLICY, "default-src *"]


@pytest.mark.parametrize("path", [route.path.replace("{job}", "1") for route in ROUTES])
def test_no_data_is_sent_without_sign_in(gate: Gate, path: str) -> None:
    answer = gate.ask("GET", path)
    assert (answer.status_code, list(answer.json())) == (401, ["error"])


# Another user's job


_UUID = re.compile(r"GPU-[0-9a-f-]{36}")


def _running_job_of_a_user(gate: Gate) -> tuple[str, str]:
    """Return (id, user) of a job with allocated GPUs."""
    job = next(
        job for job in gate.here.source.cluster().jobs if job.state == "RUNNING" and job.user != "carol"
    )
    return job.id, job.user


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize("part", ["", "/timeline", "/window"])
def test_a_user_cannot_read_another_s_job_page(gate: Gate, part: str, form: str) -> None:
    job, owner = _running_job_of_a_user(gate)
    path = f"/api/v1/jobs/{job}{part}?format={form}"
    own = gate.ask("GET", path, sender=PROXY, headers=_as(owner))
    other = gate.ask("GET", path, sender=PROXY, headers=_as("mallory"))
    if part == "/window":
        assert other.status_code == 403
    else:
        assert other.status_code == own.status_code == 200
        run = gate.here.source.run(job)[0]
        secrets = {*_UUID.findall(own.text), run.name, str(run.ugpucore)} - {None, "None"}
        assert any(secret in own.text for secret in secrets)
        assert not any(secret in other.text for secret in secrets)
    operators = gate.ask("GET", path, sender=PROXY, headers=_as("carol"))
    assert operators.content == own.content


_KEPT = ("/api/v1/frame", "/api/v1/jobs", "/squares.svg", "/api/v1/me", "/api/v1/attention")


@pytest.mark.parametrize("path", _KEPT)
def test_cached_answers_of_one_user_are_not_confirmed_to_another(gate: Gate, path: str) -> None:
    _, owner = _running_job_of_a_user(gate)
    first = gate.ask("GET", path, sender=PROXY, headers=_as("carol"))
    again = {"If-None-Match": first.headers["etag"]}
    assert gate.ask("GET", path, sender=PROXY, headers=_as("carol") | again).status_code == 304
    other = gate.ask("GET", path, sender=PROXY, headers=_as(owner) | again)
    if other.status_code == 304:  # only if both answers are identical
        other = gate.ask("GET", path, sender=PROXY, headers=_as(owner))
        assert other.content == first.content
    assert {"Cookie"} <= set(re.split(", *", other.headers["vary"]))
    assert "private" in other.headers["cache-control"]


# Injection


_HOSTILE = (
    "util' OR '1'='1",
    'util"; DROP TABLE run; --',
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "util\x00.py",
    "%s%n",
    "{{7*7}}",
    "<script>alert(1)</script>",
    "util&metric=mem",
    "__class__",
    "1;1",
    "a" * 5000,
    "١٢",
)


@pytest.mark.parametrize("text", _HOSTILE)
@pytest.mark.parametrize(
    "path",
    [
        *(
            "/api/v1/frame?metric={}",
            "/squares.svg?metric={}",
            "/api/v1/jobs?since={}",
            "/api/v1/jobs/1?format={}",
        ),
        *(
            "/api/v1/jobs/{}",
            "/api/v1/jobs/{}/timeline",
            "/api/v1/jobs/{}/window",
            "/signin/{}",
            "/page/x/{}",
            "/{}",
        ),
    ],
)
def test_no_name_is_sql_a_path_or_markup(gate: Gate, path: str, text: str) -> None:
    for spelt in (quote(text, safe=""), quote(text)):
        answer = gate.ask("GET", path.format(spelt), sender=PROXY, headers=_as("carol"))
        # A listing may treat an invalid version as unknown, and send everything.
        assert answer.status_code in (400, 404) or ("since" in path and answer.status_code == 200)
        assert answer.headers["content-type"].startswith("application/json")
        assert "root:" not in answer.text
        assert "import" not in answer.text


# Clients resolve "." and ".." in a path themselves.
@given(st.text(min_size=1, max_size=40).filter(lambda text: text not in {".", ".."}))
def test_no_job_id_but_slurms_own_reaches_slurm_gpudbd(text: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        asked: list[str] = []
        patched.setattr(_GATE.here.source, "run", lambda job: asked.append(job) or [])
        path = f"/api/v1/jobs/{quote(text, safe='')}"
        assert _GATE.ask("GET", path, sender=PROXY, headers=_as("carol")).status_code in (400, 404)
    assert all(re.fullmatch(r"[1-9][0-9]*([_+][0-9]+)?", job, re.ASCII) for job in asked)


_GATE = Gate()
