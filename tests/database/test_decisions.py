"""Decisions are stored once, shown to the job's user and operators, and dropped after their retention."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu.client.database_client import DatabaseClient, Decision
from slurm_gpu.config.site import Retention
from slurm_gpu.database.api.controller_body import MOST_DECISIONS, parse_report
from slurm_gpu.database.api.decisions import find_decisions, find_refusals, store_decisions
from slurm_gpu.database.maintenance.pruning import Pruning
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import UsageError
from slurm_gpu.wire.answers.codec import to_json
from tests.database.running_server import NOBODY, OPERATOR, ROOT, UNRESOLVED, Running
from tests.database.samples import CLUSTER

MADE = Decision(
    id="a" * 32,
    at_s=1_795_262_400,
    host="head",
    operation="submit",
    verdict="allow",
    uid=NOBODY,
    token="k3x1",
    rules="share:gpus_total:advise",
    scores="observe:zone1:700",
    job={"account": "nlp", "mgpu": "2000", "ü": "\0"},
)


def body(**changes: Any) -> bytes:
    return json.dumps({"decisions": [to_json(MADE) | changes]}).encode()


def keep(database: Database, reported: bytes, cluster: str = CLUSTER) -> None:
    database.write(
        lambda connection: store_decisions(connection, parse_report(reported).decisions or (), cluster)
    )


def found(database: Database, token: str = "k3x1") -> list[Decision]:
    with database.reading() as connection:
        return find_decisions(connection, CLUSTER, token)


def test_a_decision_shipped_twice_is_kept_once_and_whole(database: Database) -> None:
    keep(database, body())
    keep(database, body(verdict="deny"))
    keep(database, body(id="b" * 32), cluster="another")
    assert found(database) == [MADE]
    assert found(database, "K3X1") == []


def test_refusals_have_no_token_and_are_kept_too(database: Database) -> None:
    keep(database, body(verdict="deny", token=None, scores=None, rules="x" * 10_000))
    assert found(database) == []
    assert Pruning(database, Retention()).count(MADE.at_s + 15 * 86400).decisions == 1


def test_the_end_of_sharing_follows_its_decision_and_is_no_refusal(database: Database) -> None:
    keep(
        database, body(id="b" * 32, at_s=MADE.at_s + 60, operation="share", verdict="end", job={"gone": "7"})
    )
    keep(database, body())
    assert [(one.operation, one.verdict) for one in found(database)] == [
        ("submit", "allow"),
        ("share", "end"),
    ]
    with database.reading() as connection:
        assert find_refusals(connection, CLUSTER, None, 10) == []


def test_refusals_are_found_by_the_rule_the_newest_first(database: Database) -> None:
    both = "a:gpus:a100:enforce,urgent:qos:enforce"
    for number, rules in enumerate(
        ("urgent:who:enforce", both, "not_urgent:gpus:enforce", None, "urgen_:x:enforce")
    ):
        keep(database, body(id=f"{number:032x}", at_s=number, verdict="deny", token=None, rules=rules))
    keep(database, body(id="f" * 32, rules="urgent:who:advise"))  # accepted nevertheless

    def refusals(rule: str | None, limit: int = 10) -> list[int]:
        with database.reading() as connection:
            return [one.at_s for one in find_refusals(connection, CLUSTER, rule, limit)]

    assert refusals("urgent") == [1, 0]
    assert refusals("urgent", 1) == [1]
    assert refusals("urgen_") == [4]  # no sign of a pattern
    assert refusals("%") == []
    assert refusals(None) == [4, 3, 2, 1, 0]


def test_data_older_than_its_retention_is_dropped(database: Database) -> None:
    for age_d in range(3):
        keep(database, body(id=f"{age_d:032x}", token=f"t{age_d}", at_s=MADE.at_s - age_d * 86400))
    pruning = Pruning(database, Retention(decisions_s=86400.0 + 1))
    assert pruning.prune(MADE.at_s).decisions == 1
    assert [len(found(database, f"t{age_d}")) for age_d in range(3)] == [1, 1, 0]
    assert not pruning.prune(MADE.at_s)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"decisions": 1}',
        b'{"decisions": [{}]}',
        body(id="x"),
        body(at_s=-1),
        body(at_s=1 << 62),
        body(operation="guess"),
        body(verdict=""),
        body(uid=-1),
        body(uid=1 << 32),
        body(uid=None),
        body(token=""),
        body(token="a b"),
        body(token="a\n"),
        body(token="t" * 65),
        body(rules="r" * 10_001),
        body(job={"": "x"}),
        body(job={"a": 1}),
        body(host=""),
        body(job={str(n): "" for n in range(33)}),
        json.dumps({"decisions": [to_json(MADE)] * (MOST_DECISIONS + 1)}).encode(),
    ],
)
def test_an_invalid_decision_is_refused_with_the_reason(bad: bytes) -> None:
    with pytest.raises(UsageError, match=r"the report cannot be parsed|must be 32 hexadecimal"):
        parse_report(bad)


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_each_sees_their_own_and_operators_all(server: Running) -> None:
    ask = server.asked_by
    assert ask(NOBODY, "POST", "/v1/controller", body())[0] == 403
    with DatabaseClient(server.config) as client:
        assert not client.send_decisions([MADE, MADE])
        assert not client.send_decisions([replace(MADE, id="b" * 32, token="other")], MADE.id)
        assert client.send_decisions([MADE], "d" * 32), "the one before it is not there"
        assert client.decisions("k3x1") == (MADE,)
        assert client.decisions("k3x2") == ()
    for uid in (NOBODY, OPERATOR):
        status, answer = ask(uid, "GET", "/v1/decisions/k3x1")
        # Version 0.2 requires `asked`.
        assert (status, answer["decisions"]) == (200, [{**to_json(MADE), "asked": MADE.operation}])
    status, answer = ask(UNRESOLVED, "GET", "/v1/decisions/k3x1")
    assert (status, "another user's" in answer["error"]) == (403, True)
    assert ask(OPERATOR, "GET", "/v1/decisions/none")[0] == 404


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_operators_see_refused_users(server: Running) -> None:
    refused = replace(MADE, id="c" * 32, verdict="deny", token=None, rules="urgent:who:enforce")
    with DatabaseClient(server.config) as client:
        client.send_decisions([refused])
        assert client.refusals("urgent", 5) == (refused,)
        assert client.refusals() == (refused,)
        assert client.refusals("other") == ()
    ask = server.asked_by
    status, answer = ask(NOBODY, "GET", "/v1/decisions?rule=urgent")
    assert (status, answer["error"]) == (403, "only operators may see refusals")
    assert ask(OPERATOR, "GET", "/v1/decisions?rule=urgent")[1] == {"decisions": [to_json(refused)]}
    for wrong in ("limit=0", "limit=1001", "user=bob"):
        assert ask(OPERATOR, "GET", f"/v1/decisions?{wrong}")[0] == 400
