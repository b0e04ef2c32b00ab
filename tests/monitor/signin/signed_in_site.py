"""A slurm-gpuweb with sign-in for a small cluster; each client has its own address."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from slurm_gpu import munge
from slurm_gpu.config.site import Operators, SiteConfig
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.routes import RouteContext
from slurm_gpu.monitor.settings import WebSettings
from slurm_gpu.monitor.signin.assembly import SignIn
from slurm_gpu.monitor.signin.guard import Guard
from slurm_gpu.monitor.viewer import viewer_of
from tests.monitor.small_cluster import Here

Headers = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]
URL = "https://gpu.example.org"
PROXY = "10.0.0.7"
ELSEWHERE = "192.0.2.99"
HEADER = "X-Remote-User"
ACTS = {"X-Slurm-Gpu": "1"}
SETTINGS = WebSettings(url=URL, trusted_proxies=(ipaddress.ip_network("10.0.0.0/29"),), user_header=HEADER)


class Gate:
    """`ask` answers one request; `cookies` are those of the browser."""

    def __init__(self, munge_socket: str | None = None, settings: WebSettings = SETTINGS) -> None:
        self.here = Here()
        self.here.poll()
        self.munge_socket, self.settings = munge_socket, settings
        self.config = SiteConfig(
            cluster="lab", operators=Operators(users=("carol",)), munge_socket=munge_socket
        )
        self.cookies: dict[str, str] = {}
        self.app = self.started()

    def started(self, settings: WebSettings | None = None, state: Path | None = None, **more: Any) -> Guard:
        """Return slurm-gpuweb after a restart."""
        here = self.here
        sign_in = SignIn(self.config, replace(settings or self.settings, **more), here.clock, state)
        site = RouteContext(here.board, viewer_of, lambda: here.source, here.clock)
        self.app = sign_in.guarded(make_app(site, sign_in.routes()))
        return self.app

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Headers | None = None,
        body: bytes = b"",
        sender: str = ELSEWHERE,
        with_cookies: bool = True,
    ) -> httpx.Response:
        """Return the answer; keep cookies like a browser."""
        given = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        if with_cookies and self.cookies:
            given.append(("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items())))

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(sender, 40_000))
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                return await client.request(method, path, headers=given, content=body)

        answer = asyncio.run(go())
        for line in answer.headers.get_list("set-cookie"):
            found = re.match(r"([^=]+)=([^;]*); (.*)", line)
            assert found is not None
            if "Max-Age=0" in found[3]:
                self.cookies.pop(found[1], None)
            else:
                self.cookies[found[1]] = found[2]
        return answer

    def credential(self, body: bytes, method: str = "POST", target: str = "/signin") -> dict[str, str]:
        """Return the header of the user who runs these tests."""
        digest = munge.request_digest(method, target, body)
        return {"Authorization": f"MUNGE {munge.encode(digest, self.munge_socket)}"}

    def link(self, web: str = URL) -> httpx.Response:
        """Return the response to the request of `slurm-gpu web`."""
        body = json.dumps({"web": web}).encode()
        return self.ask("POST", "/signin", headers=self.credential(body), body=body, with_cookies=False)

    def token(self) -> str:
        """Return the token of a new link."""
        url: str = self.link().json()["url"]
        return url.partition("#")[2]

    def use(self, token: str, **more: Any) -> httpx.Response:
        """Return the answer of the page behind the link."""
        body = json.dumps({"token": token}).encode()
        return self.ask("POST", "/signin/token", headers=ACTS, body=body, **more)

    def who(self, **more: Any) -> str | None:
        """Return the signed-in user, or None."""
        answer = self.ask("GET", "/api/v1/me", **more)
        return str(answer.json()["user"]) if answer.status_code == 200 else None
