"""The link of `slurm-gpu web` signs a browser in to a real slurm-gpuweb, and is stored nowhere else."""

import asyncio
import json
import os
import pwd
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.clock import SystemClock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import MungeError, NotAllowedError, OutsideError, UsageError
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.http.server import make_server
from slurm_gpu.monitor.routes import RouteContext as WebSite
from slurm_gpu.monitor.settings import WebSettings
from slurm_gpu.monitor.signin.assembly import SignIn
from slurm_gpu.monitor.signin.link_request import ask_for_link
from slurm_gpu.monitor.viewer import viewer_of
from tests import browsing
from tests.monitor.small_cluster import Here

ME = pwd.getpwuid(0).pw_name


@pytest.fixture(scope="module")
def config(munge_socket: str) -> Iterator[SiteConfig]:
    """A site where slurm-gpuweb runs."""
    here = Here()
    here.poll()
    listener = socket.create_server(("127.0.0.1", 0))
    web = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = SiteConfig(cluster="lab", munge_socket=munge_socket, web=web)
    sign_in = SignIn(config, WebSettings(), SystemClock())
    site = WebSite(here.board, viewer_of, lambda: here.source, here.clock)

    server = make_server(sign_in.guarded(make_app(site, sign_in.routes())))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    yield config
    server.should_exit = True
    thread.join()


def test_it_prints_a_link_and_nothing_else(
    config: SiteConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slurm-gpu.yaml"
    file.write_text(f"cluster: lab\nmunge_socket: {config.munge_socket}\nweb: {config.web}/\n")
    assert main(["web"], CommandSite(file)) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{config.web}/signin#")
    assert len(out.split()) == 1
    assert err.startswith("The link can be used once and expires at ")
    assert main(["web", "--json"], CommandSite(file)) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"url", "until_s"}


def test_without_an_address_the_missing_setting_is_named(config: SiteConfig) -> None:
    with pytest.raises(UsageError, match=r"web: is missing in slurm-gpu\.yaml"):
        ask_for_link(replace(config, web=None))


def test_without_munge_there_is_none(config: SiteConfig) -> None:
    with pytest.raises(MungeError):
        ask_for_link(replace(config, munge_socket="/nonexistent"))


def test_a_missing_server_is_reported_in_a_line(config: SiteConfig) -> None:
    with pytest.raises(OutsideError, match=r"slurm-gpuweb at http://127\.0\.0\.1:9 cannot be reached"):
        ask_for_link(replace(config, web="http://127.0.0.1:9"))


def test_by_another_name_of_its_host_it_is_refused_as_that_may_be_another_s(config: SiteConfig) -> None:
    other = str(config.web).replace("127.0.0.1", "localhost")
    with pytest.raises(NotAllowedError, match=r"the credential is for http://localhost"):
        ask_for_link(replace(config, web=other))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_uid_without_a_user_name_is_refused_with_a_reason(config: SiteConfig) -> None:
    taken = {user.pw_uid for user in pwd.getpwall()}
    uid = next(uid for uid in range(4_000_000, 5_000_000) if uid not in taken)
    os.seteuid(uid)
    try:
        with pytest.raises(NotAllowedError) as caught:
            ask_for_link(config)
    finally:
        os.seteuid(0)
    assert str(caught.value) == (
        f"slurm-gpuweb at {config.web} refused a link: uid {uid} has no user name on slurm-gpuweb's host: "
        f"getent passwd {uid} must print one there"
    )


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, '{"url": "http://evil.example.org/signin#x", "until_s": 5}', "a link to another address"),
        (200, '{"url": "WEB/signin#\\u001b[2J", "until_s": 5}', "a link to another address"),
        (200, "<html>sign in</html>", "but is not slurm-gpuweb"),
        (302, "", "answered 302, but is not slurm-gpuweb"),
        (503, '{"error": "too many links wait"}', "answered 503: too many links wait"),
    ],
)
def test_a_server_other_than_slurm_gpuweb_is_detected(
    config: SiteConfig, status: int, body: str, says: str
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.replace("WEB", web).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        web = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(OutsideError, match=says):
            ask_for_link(replace(config, web=web))
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing.chromium() as opened:
        yield opened


def _opened(browser: Any) -> tuple[Any, list[str]]:
    """A page with its requests and console messages."""
    page = browser.new_context().new_page()
    seen: list[str] = []
    page.on("request", lambda request: seen.append(f"{request.method} {request.url} {request.headers}"))
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    return page, seen


def test_a_browser_is_let_in_and_keeps_the_token_nowhere(config: SiteConfig, browser: Any) -> None:
    page, seen = _opened(browser)
    url = ask_for_link(config).url
    token = url.partition("#")[2]
    page.goto(url)
    page.wait_for_url(f"{config.web}/")
    assert page.evaluate("document.cookie") == ""
    page.goto(f"{config.web}/api/v1/me")
    assert json.loads(page.inner_text("body"))["user"] == ME
    assert not any(token in line for line in seen)
    for _ in range(2):
        page.go_back()
        assert token not in page.url
    assert not any("Content Security Policy" in line for line in seen)


def test_a_used_link_shows_what_to_do(config: SiteConfig, browser: Any) -> None:
    url = ask_for_link(config).url
    page, _ = _opened(browser)
    page.goto(url)
    page.wait_for_url(f"{config.web}/")
    page, _ = _opened(browser)
    page.goto(url)
    # Waiting with a function would use eval, which the page's security policy forbids.
    page.wait_for_selector("[data-wrong]", state="attached")
    assert "This link has already been used" in page.inner_text("main")
    assert "slurm-gpu web" in page.inner_text("main")
    assert page.url == f"{config.web}/signin"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sign_in_page_satisfies_wcag(config: SiteConfig, browser: Any, scheme: str) -> None:
    tab = browsing.Tab(browser, f"{config.web}/signin", color_scheme=scheme)
    tab.page.locator("main").wait_for()
    assert tab.wcag_violations() == []
    tab.context.close()
