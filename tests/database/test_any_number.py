"""Any value of any parameter or body of slurm-gpudbd's API is used, or rejected by a 4xx that names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote

import httpx
import pytest

from slurm_gpu.database.app import make_app
from tests.database.running_server import Running
from tests.database.samples import T0
from tests.odd_numbers import TEXTS

NOW_S = int(T0)
VALUES = (
    "-1",
    "-0",
    "0",
    "1",
    "0.5",
    "-1e308",
    "1e999",
    "NaN",
    "Infinity",
    str(2**31),
    str(2**32),
    str(2**40 - 1),
    str(2**62 - 1),
    str(2**62),
    str(2**63 - 1),
    str(2**63),
    str(2**64),
    "9" * 400,
    "9" * 5000,
    "true",
    "null",
    '"1"',
    '""',
    '"\\ud800"',
    '"\\u0000"',
    "[]",
    "{}",
    "[" * 2000,
    '"n[1-99999]"',
    f'"n[{"0" * 50_000}-99999]"',
    f'"{"x" * 59_000}[1-99999]"',
    f'"n{"[1]" * 15_000}"',
)
PARAMETERS = {
    "/v1/runs": (
        "user",
        "account",
        "state",
        "qos",
        "partition",
        "app",
        "gpu_type",
        "server_type",
        "zone",
        "min_gpus",
        "since",
        "until",
        "sort",
        "order",
        "limit",
        "cursor",
        "unknown",
    ),
    "/v1/forecast": ("gpus", "nodes", "cores", "memory_mib", "time_limit_s", "account", "partition"),
    "/v1/usage": ("days",),
    "/v1/audit": ("limit",),
    "/v1/decisions": ("limit", "rule"),
    "/v1/reservations": ("past", "ids"),
}
BODIES: dict[str, Any] = {
    "/v1/reservations": {
        "account": "vision",
        "partition": "gpu",
        "gpus": 8,
        "n_nodes": 2,
        "duration_s": 86400,
        "why": "w",
        "gpu_type": "a",
        "earliest_s": NOW_S,
        "latest_s": NOW_S + 86400,
        "user": "u",
    },
    "/v1/reservations/1": {
        "act": "approve",
        "start_s": NOW_S,
        "end_s": NOW_S + 86400,
        "nodes": "n[1-2]",
        "why": "w",
    },
    "/v1/controller": {
        "audit": [
            {
                "id": "0" * 32,
                "at_s": NOW_S,
                "host": "h",
                "action": "a",
                "subject": "s",
                "why": "w",
                "evidence": {"n": 1},
            }
        ],
        "decisions": [
            {
                "id": "1" * 32,
                "at_s": NOW_S,
                "host": "h",
                "operation": "submit",
                "verdict": "allow",
                "uid": 1,
                "token": "a",
                "rules": "r",
                "job": {"gpus": "1"},
            }
        ],
        "reservations": [
            {
                "id": 1,
                "state": "approved",
                "at_s": NOW_S,
                "error": None,
                "why": None,
                "first_job_id": 1,
                "first_eligible_s": NOW_S,
                "first_start_s": NOW_S,
                "nodes": "n[1-2]",
            }
        ],
        "quotas": [
            {
                "user": "u",
                "as_of_s": 1.5,
                "why": None,
                "limits": [
                    {
                        "rule": "r",
                        "group": "g",
                        "per": "user",
                        "on": "u",
                        "key": "k",
                        "unit": "u",
                        "limit": 1,
                        "used": 1,
                        "left": 1,
                        "mode": "m",
                        "why": "w",
                        "until_s": 1,
                    }
                ],
            }
        ],
    },
}
ROUTES = make_app(MagicMock(), MagicMock()).routes


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    """Return an HTTP client as root on the Unix socket."""
    transport = httpx.HTTPTransport(uds=str(server.config.database_socket))
    with httpx.Client(transport=transport, base_url="http://slurm-gpudbd", timeout=60) as client:
        client.post("/v1/reservations", json=BODIES["/v1/reservations"] | {"user": "someone"})
        yield client


def ask(client: httpx.Client, method: str, target: str, body: bytes = b"") -> int:
    answer = client.request(method, target, content=body)
    reported = f"{method} {target[:80]} {body[-300:]!r}: {answer.status_code} {answer.text[:200]}"
    # The answer is 503 if Slurm does not answer, as in this test.
    assert answer.status_code < 500 or (answer.status_code == 503 and "slurmctld" in answer.text), reported
    assert answer.status_code < 400 or answer.json()["error"], reported
    assert answer.status_code < 400 or len(answer.text) < 20_000, reported
    return answer.status_code


@pytest.mark.parametrize("path", PARAMETERS)
def test_any_parameter_is_answered(client: httpx.Client, path: str) -> None:
    for name in PARAMETERS[path]:
        for text in TEXTS:
            rest = "&partition=gpu" if path == "/v1/forecast" and name != "partition" else ""
            ask(client, "GET", f"{path}?{name}={quote(text)}{rest}")


def test_too_many_reservations_are_a_usage_error_and_not_the_servers(client: httpx.Client) -> None:
    answer = client.get(f"/v1/reservations?past={'9' * 5000}")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("past: '9999999999")
    assert answer.json()["error"].endswith("must be a whole number from 0 to 1000")


@pytest.mark.parametrize("route", [route for route in ROUTES if "{" in route.path], ids=lambda one: one.path)
def test_any_part_of_a_path_is_answered(client: httpx.Client, route: Any) -> None:
    before, _, after = route.path.partition("{")
    for text in TEXTS:
        for method in route.methods - {"HEAD"}:
            ask(client, method, before + quote(text) + after.partition("}")[2], b"{}")


def texts_with(whole: Any, value: str) -> Iterator[str]:
    """Yield the body as JSON, with each part replaced by a text in turn."""
    yield value
    if isinstance(whole, list):
        items = enumerate(whole)
    elif isinstance(whole, dict):
        items = whole.items()
    else:
        return
    for key, item in items:
        for text in texts_with(item, value):
            if isinstance(whole, list):
                parts = [text if at == key else json.dumps(one) for at, one in enumerate(whole)]
                yield f"[{', '.join(parts)}]"
            else:
                parts = [f"{json.dumps(k)}: {text if k == key else json.dumps(v)}" for k, v in whole.items()]
                yield f"{{{', '.join(parts)}}}"


@pytest.mark.parametrize("path", BODIES)
def test_any_value_in_a_body_is_answered(client: httpx.Client, path: str) -> None:
    for value in VALUES:
        for text in texts_with(BODIES[path], value):
            ask(client, "POST", path, text.encode())
    assert ask(client, "POST", path, json.dumps(BODIES[path]).encode()) in (200, 400, 403)


def test_no_route_is_left_out() -> None:
    swept = {*PARAMETERS, *(path.replace("/1", "/{id}") for path in BODIES)}
    # test_hostile_records.py tests the shipments of nodes.
    swept |= {route.path for route in ROUTES if "{" in route.path} | {"/v1/node"}
    without_parameters = {"live", "nodes", "running", "verdicts", "cluster", "quota", "health"}
    assert {route.path for route in ROUTES} == swept | {f"/v1/{name}" for name in without_parameters}
