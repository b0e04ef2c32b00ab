"""Requests from the network without the MUNGE key are refused."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.app import make_app
from slurm_gpu.database.ingest.posts import Posts
from slurm_gpu.monitor.settings import WebSettings
from tests.database.samples import FakeClock
from tests.docs.pages import ROOT


class _Untouched:
    """A placeholder for all data sources that fails when used."""

    authenticator = bounds = clock = places_of = verdicts = None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used before authentication")


_PARAMETER = re.compile(r"\{[^}]*\}")
_SERVICES: Any = _Untouched()
_APP = make_app(_SERVICES, Posts(_SERVICES.authenticator, _SERVICES, FakeClock()))
_ROUTES = [
    (method, _PARAMETER.sub("1", route.path))
    for route in _APP.routes
    if isinstance(route, Route)
    for method in sorted(route.methods or ())
]


async def _status(method: str, path: str) -> int:
    transport = httpx.ASGITransport(app=_APP)
    async with httpx.AsyncClient(transport=transport, base_url="http://dbhost") as client:
        return (await client.request(method, path, content=b"{}")).status_code


@pytest.mark.parametrize(("method", "path"), _ROUTES, ids=[" ".join(route) for route in _ROUTES])
def test_no_path_answers_without_a_credential(method: str, path: str) -> None:
    """Test all paths, including future ones."""
    assert asyncio.run(_status(method, path)) == 401


def test_nothing_listens_by_default() -> None:
    assert SiteConfig(cluster="c").metrics.listen is None
    listening = {
        str(file.relative_to(ROOT / "slurm_gpu"))
        for file in (ROOT / "slurm_gpu").rglob("*.py")
        if re.search(r"\b(?:create|start)_server\(|\.bind\(", file.read_text())
    }
    assert listening == {"http/sockets.py", "node/metrics_server.py"}
    assert WebSettings().listen.host == "127.0.0.1"
