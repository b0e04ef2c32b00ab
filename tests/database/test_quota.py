"""A user and operators see the user's limits from slurm-gpuctld, or the reason why there are none."""

from __future__ import annotations

import json
import pwd
from typing import Any

import pytest

from slurm_gpu.client.database_client import DatabaseClient, Quota
from slurm_gpu.database.api.controller_body import MOST_QUOTAS, parse_report
from slurm_gpu.database.live.quota_board import KEPT_S, MOST_WANTED, WANTED_FOR_S, QuotaBoard
from slurm_gpu.errors import UsageError
from slurm_gpu.wire.answers.codec import from_json, to_json
from tests.database.running_server import NOBODY, OPERATOR, ROOT, WEB, Running
from tests.database.samples import FakeClock

LIMIT = {
    "rule": "share",
    "group": "grads",
    "per": "user",
    "on": "GPUs running",
    "key": "gpus_running",
    "unit": "GPUs",
    "limit": 16.0,
    "used": 0.0,
    "left": 16.0,
    "mode": "enforce",
    "why": "Others.",
    "until_s": None,
}
EACH = LIMIT | {"limit": [{"gpus": 4.0, "s": 3600}], "used": None, "left": None}
QUOTA = Quota(user="alice", as_of_s=5.0, limits=[LIMIT, EACH, LIMIT | {"limit": ["a100"]}], why=None)


def body(**changes: Any) -> bytes:
    return json.dumps({"quotas": [to_json(QUOTA) | changes]}).encode()


def test_sent_limits_are_kept_whole_for_readers() -> None:
    board = QuotaBoard(FakeClock())
    board.ask("alice")
    board.put([item.quota for item in parse_report(body()).quotas or ()])
    assert board.ask("alice") == QUOTA


def test_requests_and_sent_limits_expire() -> None:
    clock = FakeClock()
    board = QuotaBoard(clock)
    assert "slurm-gpuctld" in str(board.ask("alice").why)
    assert board.wanted() == ["alice"]
    assert "try again in 15 s" in str(board.ask("alice").why)
    board.put([QUOTA])
    clock.now += KEPT_S
    old = board.ask("alice")
    assert old.limits is None
    assert "is not reporting; check that it is running" in str(old.why)
    clock.now += WANTED_FOR_S
    assert board.wanted() == []
    board.put([QUOTA])
    assert board.ask("alice").limits is None, "it was not requested"


def test_memory_is_bounded_for_any_number_of_readers() -> None:
    board = QuotaBoard(FakeClock())
    board.wanted()
    for number in range(MOST_WANTED):
        board.ask(f"user{number}")
    assert f"limits of {MOST_WANTED} users" in str(board.ask("alice").why)
    assert len(board.wanted()) == MOST_WANTED


@pytest.mark.parametrize(
    "bad",
    [
        body(user=""),
        body(user="u" * 256),
        body(limits=[{}]),
        body(limits=[LIMIT | {"limit": "x"}]),
        body(limits=[LIMIT] * 1001),
        body(why="w" * 10_001),
        body(as_of_s=None),
        json.dumps({"quotas": [to_json(QUOTA)] * (MOST_QUOTAS + 1)}).encode(),
    ],
)
def test_invalid_limits_are_refused(bad: bytes) -> None:
    with pytest.raises(UsageError, match="the report cannot be parsed"):
        parse_report(bad)


@pytest.mark.skipif(not ROOT, reason="must be run as root")
def test_one_sees_ones_own_and_operators_all(server: Running) -> None:
    name = pwd.getpwuid(NOBODY).pw_name
    own = f"/v1/quota/{name}"
    assert server.asked_by(NOBODY, "GET", own)[1]["limits"] is None
    mine = to_json(QUOTA) | {"user": name}
    status, _ = server.asked_by(0, "POST", "/v1/controller", json.dumps({"quotas": [mine]}).encode())
    assert status == 200
    for uid in (NOBODY, OPERATOR, WEB, 0):
        assert server.asked_by(uid, "GET", own) == (200, mine)
    status, answer = server.asked_by(NOBODY, "GET", "/v1/quota/root")
    assert (status, answer["error"]) == (403, "only root and operators may see the limits of root")


@pytest.mark.skipif(not ROOT, reason="must be run as root")
def test_only_slurm_gpuctld_reads_the_requests_and_sends_quotas(server: Running) -> None:
    for uid in (NOBODY, OPERATOR, WEB):
        assert server.asked_by(uid, "GET", "/v1/quota")[0] == 403
        assert server.asked_by(uid, "POST", "/v1/controller", body())[0] == 403
    with DatabaseClient(server.config) as database:
        database.quota("some.one+else")
        assert "some.one+else" in database.quotas_wanted()
        database.send_quotas([Quota(user="some.one+else", as_of_s=1.5, limits=[], why=None)])
        assert database.quota("some.one+else").limits == []


@pytest.mark.parametrize("target", ["/v1/quota/%0a", "/v1/quota/" + "u" * 256, "/v1/quota/root?x=1"])
def test_an_invalid_name_is_not_requested(server: Running, target: str) -> None:
    assert server.raw("GET", target, b"", server.signed("GET", target))[0] == 400


@pytest.mark.skipif(not ROOT, reason="must be run as root")
@pytest.mark.parametrize(("uid", "own"), [(NOBODY, True), (NOBODY - 1, False), (None, True)])
def test_a_uid_with_a_reused_name_sees_no_limits_of_the_former_user(
    server: Running, uid: int | None, own: bool
) -> None:
    name = pwd.getpwuid(NOBODY).pw_name
    target = f"/v1/quota/{name}"
    server.asked_by(NOBODY, "GET", target)
    reported = to_json(QUOTA) | {"user": name, "uid": uid}
    server.asked_by(0, "POST", "/v1/controller", json.dumps({"quotas": [reported]}).encode())
    _, answer = server.asked_by(NOBODY, "GET", target)
    assert (answer["limits"] is not None) == own
    assert (answer["why"] is None) == own
    assert server.asked_by(OPERATOR, "GET", target)[1]["limits"] is not None


def test_limits_of_an_older_slurm_gpudbd_are_read() -> None:
    answer = {name: value for name, value in to_json(QUOTA).items() if name != "uid"}
    assert from_json(Quota, answer) == QUOTA
