"""Verdicts are stored once per run and cause, and shown to the job's user and operators."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, select

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.live.verdict_board import ShownVerdicts
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import verdict
from slurm_gpu.database.verdicts.store import StoredVerdict, close_left, statements, store_verdict
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire.answers.codec import from_json, to_json
from slurm_gpu.wire.answers.verdicts import JobVerdict, ReportedSuspect, Verdicts
from tests.database.running_server import NOBODY, OPERATOR, ROOT, UNRESOLVED, WEB, Running
from tests.database.samples import CLUSTER, T0

SUSPECT = ReportedSuspect(
    node="n1", device="GPU-3", jobs=3, users=2, healthy=0, first_s=T0, last_s=T0 + 9, next_step="scontrol …"
)


def reported(**given: Any) -> StoredVerdict:
    values = {
        "job_id": 7,
        "start_s": T0,
        "user": "alice",
        "cause": "slow or failing",
        "kind": "clock",
        "confidence": 0.9,
        "devices": [("n1", "GPU-3")],
        "nodes": [],
        "since_s": T0 + 100.5,
        "reported_at_s": T0 + 160,
        "last_s": T0 + 160,
        "verdict": {"cause": "slow or failing"},
    }
    ended_s = given.pop("ended_s", None)
    return StoredVerdict(verdict=JobVerdict(**{**values, **given}), uid=60901, n_gpus=16.0, ended_s=ended_s)


def store(database: Database, *some: StoredVerdict) -> None:
    for item in some:
        database.write(lambda connection, item=item: store_verdict(connection, CLUSTER, item))


def rows(database: Database) -> list[Any]:
    with database.reading() as connection:
        return list(connection.execute(select(verdict).order_by(verdict.c.verdict_id)).mappings())


def test_one_that_is_found_again_stays_one_and_since_when(database: Database) -> None:
    store(database, reported(), reported(last_s=T0 + 220, reported_at_s=T0 + 999, confidence=0.95))
    (row,) = rows(database)
    assert (row["reported_at_s"], row["last_s"], row["confidence"]) == (T0 + 160, T0 + 220, 0.95)
    assert (row["devices"], row["body"], row["ended_s"]) == (
        [["n1", "GPU-3"]],
        {"cause": "slow or failing"},
        None,
    )


def test_one_that_the_database_lost_is_there_again_once_it_is_found_again(database: Database) -> None:
    store(database, reported())
    database.write(lambda connection: connection.execute(delete(verdict)))
    store(database, reported(last_s=T0 + 220))
    (row,) = rows(database)
    assert (row["reported_at_s"], row["last_s"], row["cause"]) == (T0 + 160, T0 + 220, "slow or failing")


def test_a_returning_verdict_is_open_again(database: Database) -> None:
    store(database, reported(ended_s=T0 + 200))
    assert rows(database)[0]["ended_s"] == T0 + 200
    store(database, reported(last_s=T0 + 300))
    assert rows(database)[0]["ended_s"] is None


def test_each_run_and_cause_has_its_own(database: Database) -> None:
    store(database, reported(), reported(cause="hang"), reported(start_s=T0 + 5000), reported(job_id=8))
    assert len(rows(database)) == 4


def test_an_open_verdict_of_an_earlier_watch_ended_at_its_last_finding(database: Database) -> None:
    store(database, reported(last_s=T0 + 220), reported(job_id=8, ended_s=T0 + 500))
    assert database.write(lambda connection: close_left(connection, CLUSTER)) == 1
    assert [row["ended_s"] for row in rows(database)] == [T0 + 220, T0 + 500]


def test_hardware_is_accused_by_its_cause_alone_and_vouched_for_by_jobs_that_are_well(
    database: Database,
) -> None:
    well = reported(job_id=9, cause="healthy", since_s=None, last_s=T0 + 300)
    store(database, reported(), reported(cause="input starvation"), well, reported(job_id=10, last_s=T0 - 10))
    with database.reading() as connection:
        said = statements(connection, CLUSTER, T0)
    assert [(one.job, one.accuses, one.since_s) for one in said] == [
        (f"7 {T0}", True, T0 + 100.5),
        (f"9 {T0}", False, T0 + 160),
    ]
    assert said[0].devices == [("n1", "GPU-3")]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_users_see_their_own_and_operators_all(server: Running) -> None:
    mine, others = reported(user="nobody").verdict, reported(job_id=8, user="other").verdict
    server.verdicts.shown = ShownVerdicts(T0 + 500.0, 12, ((NOBODY, mine), (12345, others)), (SUSPECT,))
    for uid, jobs, n_suspects in (
        (NOBODY, [7], 0),
        (UNRESOLVED, [], 0),
        (OPERATOR, [7, 8], 1),
        (WEB, [7, 8], 1),
    ):
        status, answer = server.asked_by(uid, "GET", "/v1/verdicts")
        assert (status, answer["watched"]) == (200, 12)
        assert [item["job_id"] for item in answer["verdicts"]] == jobs
        assert len(answer["suspects"]) == n_suspects


def test_the_client_reads_audit_events(server: Running) -> None:
    server.verdicts.shown = ShownVerdicts(T0 + 500.0, 12, ((60901, reported().verdict),), (SUSPECT,))
    with DatabaseClient(server.config) as client:
        seen = client.verdicts()
    assert seen == Verdicts(as_of_s=T0 + 500.0, watched=12, verdicts=[reported().verdict], suspects=[SUSPECT])


def test_without_a_watch_the_answer_is_empty(server: Running) -> None:
    server.verdicts.shown = ShownVerdicts()
    with DatabaseClient(server.config) as client:
        seen = client.verdicts()
    assert (seen.as_of_s, seen.verdicts) == (None, [])


def test_additions_of_a_newer_slurm_gpudbd_are_ignored_and_invalid_verdicts_refused() -> None:
    answer = to_json(Verdicts(as_of_s=1.0, watched=1, verdicts=(reported().verdict,), suspects=(SUSPECT,)))
    answer["verdicts"][0]["later"] = answer["later"] = 1
    assert from_json(Verdicts, answer).verdicts == [reported().verdict]
    for wrong in (None, [], {**answer, "verdicts": [{}]}, {**answer, "suspects": None}):
        with pytest.raises(DatabaseError, match="cannot be read"):
            from_json(Verdicts, wrong)
