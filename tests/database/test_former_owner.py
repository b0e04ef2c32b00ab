"""A user with the name of a former user reads no data of the former user, on any path."""

from __future__ import annotations

import json
import pwd
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.app import make_app
from slurm_gpu.database.live.verdict_board import ShownVerdicts
from slurm_gpu.wire.answers.codec import to_json
from tests.database.running_server import NOBODY, OPERATOR, ROOT, Running, running_server
from tests.database.samples import T0, host, queued, record, row
from tests.database.test_quota import QUOTA
from tests.database.test_reservations import request
from tests.database.test_verdicts import reported

pytestmark = pytest.mark.skipif(not ROOT, reason="becoming another user needs root")

NAME = pwd.getpwuid(NOBODY).pw_name
FORMER = 4711
JOB = 8
SECRET = "s3cret"
PLACES = {
    "/v1/runs": f"?user={NAME}",
    "/v1/forecast": "?partition=gpu&gpus=1&time_limit_s=60",
    "/v1/reservations": "?past=10",
}
NAMES = {"job": str(JOB), "user": NAME, "token": "k3x1"}
SHOWN_TO_OPERATORS = {  # An operator must find the text in each of these.
    "/v1/runs",
    "/v1/runs/{job}",
    "/v1/cluster",
    "/v1/verdicts",
    "/v1/quota/{user}",
    "/v1/decisions/{token}",
    "/v1/decisions",
    "/v1/reservations",
}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, short_path: Path, munge_socket: str
) -> Iterator[Running]:
    """Store a job, a reservation, a verdict, decisions and limits of the former owner of NAME."""
    with running_server(tmp_path_factory.mktemp("owner"), short_path / "owner.sock", munge_socket) as made:
        whose = {"job_id": JOB, "user": NAME, "uid": FORMER, "name": SECRET}
        running = row(**whose, state="RUNNING", end_s=None, nodes="here")
        made.slurm.rows.append(running)
        made.slurm.queue.append(queued(**whose, nodes=("here",), gpu_index={"here": {"gpu": (0,)}}))
        made.database.write(lambda connection: store_changed_runs(connection, [run_row(running, {})]))
        given = {"job_id": JOB, "node": "here", "final": False}
        body = {
            "wire": 2,
            "node": "here",
            "boot_id": "b",
            "hosts": [host(**given, app=SECRET).to_wire()],
            "records": [record(**given).to_wire()],
        }
        headers = made.signed("POST", "/v1/node", json.dumps(body).encode())
        assert made.raw("POST", "/v1/node", json.dumps(body).encode(), headers)[0] == 200
        reconcile(made.database)
        request(made.database, NAME, uid=FORMER, why=SECRET)
        verdict = reported(job_id=JOB, user=NAME, verdict={"text": SECRET}).verdict
        made.verdicts.shown = ShownVerdicts(T0 + 5.0, 1, ((FORMER, verdict),), ())
        made.asked_by(NOBODY, "GET", f"/v1/quota/{NAME}")
        decision = {
            "at_s": T0,
            "host": "head",
            "operation": "submit",
            "uid": FORMER,
            "job": {"account": SECRET},
        }
        limits = replace(QUOTA, user=NAME, uid=FORMER, limits=[QUOTA.limits[0] | {"why": SECRET}])  # type: ignore[index,operator]
        words = {
            "quotas": [to_json(limits)],
            "decisions": [
                {**decision, "id": "a" * 32, "verdict": "allow", "token": "k3x1"},
                {**decision, "id": "b" * 32, "verdict": "deny"},
            ],
        }
        assert made.asked_by(0, "POST", "/v1/controller", json.dumps(words).encode())[0] == 200
        yield made


def paths(server: Running) -> list[str]:
    routes = make_app(server.services, server.posts).routes
    return [route.path for route in routes if isinstance(route, Route) and "GET" in (route.methods or ())]


def ask(server: Running, uid: int, path: str) -> tuple[int, Any]:
    target = re.sub(r"\{(\w+)[^}]*\}", lambda name: NAMES[name[1]], path) + PLACES.get(path, "")
    return server.asked_by(uid, "GET", target)


def test_a_user_with_a_reused_name_reads_nothing_of_the_former_one(server: Running) -> None:
    """Test all paths of the API, including future ones."""
    answers = {path: json.dumps(ask(server, NOBODY, path)) for path in paths(server)}
    assert [path for path, answer in answers.items() if SECRET in answer] == []


def test_an_operator_finds_it_in_each_of_these_places(server: Running) -> None:
    found = {path for path in paths(server) if SECRET in json.dumps(ask(server, OPERATOR, path))}
    assert found >= SHOWN_TO_OPERATORS
