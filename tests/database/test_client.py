"""Test DatabaseClient with the real server, and with other servers."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import SystemClock
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.http.server import make_server
from slurm_gpu.database.ingest.body_budget import BodyBudget
from slurm_gpu.database.ingest.ingest_server import IngestConnection, IngestServer
from slurm_gpu.database.ingest.stall_detector import StallDetector
from slurm_gpu.database.storage.engine import head_revision
from slurm_gpu.errors import DatabaseError, OutsideError, UsageError
from slurm_gpu.http.sockets import listen_unix
from slurm_gpu.wire import WIRE_RANGE
from slurm_gpu.wire.answers.runs import Run, RunPage
from slurm_gpu.wire.record import as_of_wire_1
from tests.database.running_server import Running
from tests.database.samples import CLUSTER, record


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
        assert (health.cluster, health.schema, health.wire) == (CLUSTER, head_revision(), WIRE_RANGE)
        assert [item.name for item in client.all_runs(limit=1)] == ["secret"]
        assert client.runs(user="bob").runs == []
        assert [item.id for item in client.run("1")] == ["1"]
        assert client.run("99") == ()
        with pytest.raises(UsageError, match="limit"):
            client.runs(limit=0)
        with pytest.raises(UsageError, match="is not a job"):
            client.run("1 OR 1=1?x=&")


def test_a_missing_munged_is_an_error(tmp_path: Path) -> None:
    config = SiteConfig(cluster="x", database="http://127.0.0.1:1", database_socket=tmp_path / "none")
    silent = replace(config, munge_socket="/nonexistent")
    with DatabaseClient(silent) as client, pytest.raises(OutsideError, match="MUNGE"):
        client.health()


def test_an_address_without_a_listener_is_reported(server: Running, tmp_path: Path) -> None:
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
    with pytest.raises(OutsideError, match="is already listening"):
        listen_unix(server.config.database_socket)
    listen_unix(stale).close()


def _none_ships(visit: IngestConnection) -> None:
    raise AssertionError(f"{visit.address} ships")


@pytest.mark.parametrize(
    ("status", "headers", "body", "complaint"),
    [
        (200, {}, b"<html>", "answered 200, but not in JSON; is it slurm-gpudbd?"),
        (503, {}, b"<html>", "answered 503, but not in JSON; is it slurm-gpudbd?"),
        (
            503,
            {b"retry-after": b"10"},
            b'{"error": "the database does not answer: gone"}',
            "cannot answer at the moment; try again in 10 s, and if this persists, run slurm-gpu doctor: "
            "the database does not answer: gone$",
        ),
        (500, {}, b'{"error": "odd"}', "answered 500: odd$"),
        (
            403,
            {},
            b'{"error": "for operators"}',
            "^not allowed: for operators \\(reported by slurm-gpudbd at ",
        ),
    ],
)
def test_an_invalid_answer_is_an_error_with_advice(
    short_path: Path, status: int, headers: dict[bytes, bytes], body: bytes, complaint: str
) -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        await send({"type": "http.response.body", "body": body})

    with (
        answering(short_path / "other.sock", other) as config,
        DatabaseClient(config) as client,
        pytest.raises(DatabaseError, match=complaint),
    ):
        client.health()


@pytest.mark.parametrize("of_release", [dict, as_of_wire_1], ids=["this", "previous"])
def test_records_of_a_job_are_read_from_this_and_the_previous_release(
    short_path: Path, of_release: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    run = dict.fromkeys(name for name in Run.__struct_encode_fields__ if not name.startswith("tres_"))
    run |= {"id": "7", "full": True, "job_id": 7, "submit_s": 1, "nNODE": 1}
    run |= dict.fromkeys(("cluster", "user", "account", "qos", "partition", "state", "nodes"), "x")
    run["devices"] = [of_release(record().to_wire())]
    body = json.dumps({"runs": [run], "cursor": None}).encode()

    async def older(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": body})

    with answering(short_path / "older.sock", older) as config, DatabaseClient(config) as client:
        (found,) = client.run("7")
    assert found.devices == [record()]


@pytest.mark.parametrize("runs", [5, "x", [7], [{"devices": 1}], None])
def test_an_answer_without_runs_is_an_error(runs: Any) -> None:
    with pytest.raises(DatabaseError, match="cannot be read"):
        RunPage.from_json({"runs": runs, "cursor": None})


@contextlib.contextmanager
def answering(path: Path, app: Any) -> Iterator[SiteConfig]:
    """Return the settings of a site whose slurm-gpudbd is an ASGI application."""
    clock = SystemClock()
    uvicorn = make_server(
        app, IngestServer(_none_ships, StallDetector("nothing waits", clock), BodyBudget(clock))
    )
    listener = listen_unix(path)
    thread = threading.Thread(target=lambda: asyncio.run(uvicorn.serve([listener])))
    thread.start()
    try:
        yield SiteConfig(cluster="x", database_socket=path)
    finally:
        uvicorn.should_exit = True
        thread.join()
