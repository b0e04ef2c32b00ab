"""Audit events are stored once, indefinitely, and shown to operators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.api.audit import find_audit, store_audit
from slurm_gpu.database.api.controller_body import parse_report
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import UsageError
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import AuditEvent
from tests.database.running_server import NOBODY, OPERATOR, ROOT, Running

MOVED = AuditEvent(
    id="0" * 32,
    at_s=1_795_262_400,
    host="head",
    action="limit moved",
    subject="gpus_running of share",
    old="2",
    new="3",
    why="mean wait 1.0 h → 0.5 h",
    evidence={"waits": [1.5, None, "ü"]},
)


def body(**changes: Any) -> bytes:
    act = {name: value for name, value in to_json(MOVED).items() if name != "reported_by"} | changes
    return json.dumps({"audit": [act]}).encode()


def test_an_audit_event_sent_twice_is_stored_once_as_it_was_first(database: Database) -> None:
    for found in (body(), body(why="something else")):
        database.write(
            lambda connection, found=found: store_audit(connection, parse_report(found).audit or (), "root")
        )
    with database.reading() as connection:
        (kept,) = find_audit(connection, 10)
    assert (kept.why, kept.reported_by, kept.evidence) == (MOVED.why, "root", MOVED.evidence)


def test_the_newest_are_shown_first(database: Database) -> None:
    for number in range(3):
        found = body(id=f"{number:032x}", at_s=number)
        database.write(
            lambda connection, found=found: store_audit(connection, parse_report(found).audit or (), "root")
        )
    with database.reading() as connection:
        assert [act.at_s for act in find_audit(connection, 2)] == [2, 1]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        b"{}",
        b'{"audit": 1}',
        b"[" * 100_000,
        body(id="x"),
        body(id="0" * 33),
        body(at_s=-1),
        body(at_s=1.5),
        body(action=""),
        body(host="h" * 256),
        body(why="w" * 10_001),
        body(evidence="e" * (1 << 20)),
        json.dumps({"audit": [{}] * 101}).encode(),
    ],
)
def test_an_invalid_audit_event_is_refused_with_the_reason(bad: bytes) -> None:
    with pytest.raises(
        UsageError, match=r"the report (cannot be parsed|is empty)|must be 32 hexadecimal|larger than 1 MiB"
    ):
        parse_report(bad)


def test_reports_of_slurm_gpuctld_0_2_are_accepted() -> None:
    refused = {"id": "1" * 32, "at_s": 1, "host": "h", "asked": "submit", "verdict": "deny", "uid": 7}
    old = json.loads(body().replace(b'"action"', b'"act"')) | {"decisions": [refused]}
    found = parse_report(json.dumps(old).encode())
    assert [one.action for one in found.audit or ()] == ["limit moved"]
    assert [one.operation for one in found.decisions or ()] == ["submit"]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_root_writes_operators_read_and_others_do_neither(server: Running) -> None:
    ask = server.asked_by
    for uid in (NOBODY, OPERATOR):
        assert ask(uid, "POST", "/v1/controller", body())[0] == 403
    with DatabaseClient(server.config) as client:
        client.send_audit_events([MOVED])
        client.send_audit_events([MOVED])
        (kept,) = client.acts()
    assert (kept.subject, kept.reported_by, kept.evidence) == (MOVED.subject, "root", MOVED.evidence)
    assert ask(NOBODY, "GET", "/v1/audit")[0] == 403
    status, answer = ask(OPERATOR, "GET", "/v1/audit?limit=5")
    assert (status, [act["new"] for act in answer["audit"]]) == (200, ["3"])
    for target in ("/v1/audit?limit=0", "/v1/audit?limit=x", "/v1/audit?since=1"):
        assert ask(OPERATOR, "GET", target)[0] == 400
    assert ask(0, "POST", "/v1/controller", b"{}")[0] == 400
