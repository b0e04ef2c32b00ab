"""Reservations: users request, operators decide, nodes are promised only once, and outcomes are stored."""

from __future__ import annotations

import json
import pwd
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.api.audit import find_audit
from slurm_gpu.database.reservations.store import approve, end, find, find_one, store_reports, store_request
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import DatabaseError, UsageError
from slurm_gpu.wire.answers.codec import from_json, to_json
from slurm_gpu.wire.answers.reservation import CLOCK_AHEAD, Report, Reservation, ReservationState, id_of
from tests.database.running_server import NOBODY, OPERATOR, ROOT, UNRESOLVED, Running
from tests.database.samples import CLUSTER, T0

NOW_S = int(T0)
DAY_S = 86400
NAME_OF_NOBODY = pwd.getpwuid(NOBODY).pw_name
UIDS = {name: 1001 + n for n, name in enumerate(("alice", "bob", "carol", "dave"))}
ASKED: dict[str, Any] = {
    "account": "vision",
    "partition": "gpu",
    "gpus": 8,
    "n_nodes": 2,
    "duration_s": DAY_S,
    "why": "the model of the paper",
}


def request(database: Database, user: str = "alice", **changes: Any) -> Reservation:
    values = {
        "cluster": CLUSTER,
        "user": user,
        "uid": UIDS.get(user),
        "earliest_s": NOW_S,
        "requested_s": NOW_S,
        **ASKED,
        **changes,
    }

    def store(connection: Any) -> Reservation:
        found = find_one(connection, CLUSTER, store_request(connection, values, 3))
        assert found is not None
        return found

    return database.write(store)


def promise(database: Database, one: Reservation, start_s: int, nodes: str) -> None:
    database.write(
        lambda connection: approve(connection, one, start_s, start_s + DAY_S, nodes, "carol", NOW_S)
    )


def now(database: Database, one: Reservation) -> Reservation:
    with database.reading() as connection:
        found = find_one(connection, CLUSTER, one.id)
    assert found is not None
    return found


def store_report(database: Database, report: Report, now_s: int = NOW_S + DAY_S) -> None:
    database.write(lambda connection: store_reports(connection, CLUSTER, [report], now_s))


def test_a_request_becomes_a_promise_and_the_promise_an_act(database: Database) -> None:
    one = request(database)
    assert (one.state, one.start_s, one.why) == (ReservationState.REQUESTED, None, ASKED["why"])
    promise(database, one, NOW_S + 60, "n[1-2]")
    kept = now(database, one)
    assert (kept.state, kept.start_s, kept.end_s, kept.nodes, kept.decided_by) == (
        ReservationState.APPROVED,
        NOW_S + 60,
        NOW_S + 60 + DAY_S,
        "n[1-2]",
        "carol",
    )
    with database.reading() as connection:
        (act,) = find_audit(connection, 10)
    assert (act.action, act.subject, act.reported_by) == ("reservation approved", one.name, "carol")
    assert act.new == "n[1-2] from 2026-05-28T20:27Z to 2026-05-29T20:27Z"


def test_nodes_are_promised_once_at_a_time(database: Database) -> None:
    first, second, third = (request(database) for _ in range(3))
    promise(database, first, NOW_S, "n[1-2]")
    with pytest.raises(UsageError, match=f"reservation {first.id} has n2 for part of this time"):
        promise(database, second, NOW_S + DAY_S - 1, "n[2-3]")
    promise(database, second, NOW_S + DAY_S, "n[2-3]")  # a reservation that ends then does not overlap
    promise(database, third, NOW_S, "n[4-5]")
    with pytest.raises(UsageError, match="is approved: only a requested reservation"):
        promise(database, now(database, third), NOW_S, "n[4-5]")
    with pytest.raises(UsageError, match="requires 2 nodes, but n9 contains 1"):
        promise(database, request(database, "bob"), NOW_S, "n9")


def test_a_user_has_a_few_at_once_and_more_when_some_are_over(database: Database) -> None:
    ids = [request(database).id for _ in range(3)]
    with pytest.raises(UsageError, match=f"alice has 3 open reservations \\({ids[0]}, {ids[1]}, {ids[2]}\\)"):
        request(database)
    first = find_one_of(database, ids[0])
    database.write(
        lambda connection: end(connection, first, ReservationState.CANCELLED, "alice", NOW_S, "no data")
    )
    assert request(database).state is ReservationState.REQUESTED


def test_requests_per_day_are_limited_even_if_cancelled(database: Database) -> None:
    for n in range(50):
        one = request(database, requested_s=NOW_S + n)
        database.write(lambda c, one=one: end(c, one, ReservationState.CANCELLED, "alice", NOW_S, "no data"))
    with pytest.raises(
        UsageError,
        match=r"alice has reached the limit of 50 requests within a day, .* after 2026-05-29T20:26Z",
    ):
        request(database, requested_s=NOW_S + DAY_S - 1)
    assert request(database, "bob").state is ReservationState.REQUESTED
    assert request(database, requested_s=NOW_S + DAY_S).state is ReservationState.REQUESTED


def find_one_of(database: Database, number: int) -> Reservation:
    with database.reading() as connection:
        found = find_one(connection, CLUSTER, number)
    assert found is not None
    return found


def all_at_once(works: Sequence[Callable[[], object]]) -> list[str]:
    """Run the calls in threads that start together; return the errors of refused calls."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> str | None:
        barrier.wait()
        try:
            work()
        except UsageError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(works)) as pool:
        return [why for why in pool.map(run, works) if why is not None]


def test_the_limit_of_requests_holds_for_concurrent_requests(database: Database) -> None:
    refused = all_at_once([lambda: request(database)] * 8)
    assert len(refused) == 5


def test_concurrent_approvals_promise_no_node_twice(database: Database) -> None:
    ones = [request(database, user) for user in ("alice", "bob", "carol", "dave")]
    refused = all_at_once([partial(promise, database, one, NOW_S + 60, "n[1-2]") for one in ones])
    assert len(refused) == 3
    assert all("for part of this time" in why for why in refused)


def test_a_decision_fails_if_the_request_was_cancelled_or_promised_meanwhile(database: Database) -> None:
    gone, promised = request(database), request(database, "bob")
    database.write(lambda c: end(c, gone, ReservationState.CANCELLED, "alice", NOW_S, "no data"))
    with pytest.raises(UsageError, match="is cancelled: only a requested reservation"):
        promise(database, gone, NOW_S, "n[1-2]")
    promise(database, promised, NOW_S, "n[1-2]")
    with pytest.raises(UsageError, match="is approved: only a requested reservation"):
        promise(database, promised, NOW_S, "n[3-4]")
    with pytest.raises(UsageError, match="slurm-gpu reserve cancel"):
        database.write(lambda c: end(c, promised, ReservationState.DENIED, "carol", NOW_S, "no"))
    assert now(database, promised).nodes == "n[1-2]"


def test_ended_reservations_stay_so_and_promised_ones_are_cancelled_not_denied(database: Database) -> None:
    one = request(database)
    promise(database, one, NOW_S, "n[1-2]")
    with pytest.raises(UsageError, match="slurm-gpu reserve cancel"):
        database.write(lambda c: end(c, now(database, one), ReservationState.DENIED, "carol", NOW_S, "no"))
    database.write(
        lambda c: end(c, now(database, one), ReservationState.CANCELLED, "alice", NOW_S + 5, "no data")
    )
    store_report(database, Report(id=one.id, at_s=NOW_S + 9, state=ReservationState.ACTIVE))
    over = now(database, one)
    assert (over.state, over.ended_s, over.ended_why) == (ReservationState.CANCELLED, NOW_S + 5, "no data")
    assert over.decided_by == "carol"  # the approving operator
    with pytest.raises(UsageError, match="is cancelled already"):
        database.write(lambda c: end(c, now(database, one), ReservationState.CANCELLED, "alice", NOW_S, ""))


def test_the_first_job_is_reported_once_and_repetition_changes_nothing(database: Database) -> None:
    one = request(database)
    promise(database, one, NOW_S, "n[1-2]")
    first = Report(
        id=one.id,
        at_s=NOW_S + 40,
        state=ReservationState.ACTIVE,
        first_job_id=17,
        first_eligible_s=NOW_S - 5,
        first_start_s=NOW_S + 30,
    )
    store_report(database, first)
    store_report(database, replace(first, first_job_id=18, first_start_s=NOW_S + 500, error="Slurm refused"))
    store_report(
        database, Report(id=one.id, at_s=NOW_S, state=ReservationState.APPROVED)
    )  # a report that arrives late
    kept = now(database, one)
    assert (kept.state, kept.first_job_id, kept.first_start_s) == (ReservationState.ACTIVE, 17, NOW_S + 30)
    assert kept.error is None
    store_report(
        database, Report(id=one.id, at_s=NOW_S + 99, state=ReservationState.RELEASED, why="it was not used")
    )
    with database.reading() as connection:
        assert find(connection, CLUSTER, 0, []) == []
        (over,) = find(connection, CLUSTER, 5, [])
    assert (over.state, over.ended_s, over.ended_why) == (
        ReservationState.RELEASED,
        NOW_S + 99,
        "it was not used",
    )


def test_new_nodes_of_a_reservation_are_stored_unless_promised_to_another(
    database: Database,
) -> None:
    one, other = request(database), request(database, "bob")
    promise(database, one, NOW_S, "n[1-2]")
    promise(database, other, NOW_S, "n[3-4]")
    report = Report(id=one.id, at_s=NOW_S, state=ReservationState.APPROVED)
    store_report(database, replace(report, nodes="n[2-3]"))
    kept = now(database, one)
    assert (kept.nodes, kept.error) == (
        "n[1-2]",
        f"in Slurm, this reservation is on n[2-3], but reservation {other.id} has n3",
    )
    store_report(database, replace(report, nodes="n[2,5]"))
    store_report(database, report)
    assert (now(database, one).nodes, now(database, one).error) == ("n[2,5]", None)


def test_a_controller_whose_clock_is_ahead_ends_nothing(database: Database) -> None:
    one = request(database)
    promise(database, one, NOW_S, "n[1-2]")
    early = Report(id=one.id, at_s=NOW_S + 9 * DAY_S, state=ReservationState.ENDED, why="its window is over")
    store_report(database, early, NOW_S + 5)
    kept = now(database, one)
    assert kept.state is ReservationState.APPROVED
    assert kept.error is not None
    assert kept.error.startswith(CLOCK_AHEAD)
    ahead = 9 * DAY_S - 5
    assert kept.error == (
        f"slurm-gpuctld's clock is {ahead} s ahead of slurm-gpudbd's: its reports are ignored"
    )
    store_report(
        database, Report(id=one.id, at_s=NOW_S + 65, state=ReservationState.ACTIVE), NOW_S + 5
    )  # clocks may differ by a minute
    assert (now(database, one).state, now(database, one).error) == (ReservationState.ACTIVE, None)


@pytest.mark.parametrize(
    ("name", "number"), [("sg_7", 7), ("sg_", None), ("sg_07", None), ("sg_7x", None), ("maint", None)]
)
def test_names_of_ours_are_known(name: str, number: int | None) -> None:
    assert id_of(name) == number


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_users_request_operators_approve_and_every_user_sees_the_calendar(server: Running) -> None:
    def ask(uid: int, path: str, **body: Any) -> tuple[int, Any]:
        return server.asked_by(uid, "POST", f"/v1/reservations{path}", json.dumps(body).encode())

    now_s = int(server.clock.wall())
    status, answer = ask(NOBODY, "", **{**ASKED, "account": "Vision"})
    assert status == 200
    one = answer["reservation"]
    assert (one["user"], one["state"], one["earliest_s"]) == (NAME_OF_NOBODY, "requested", now_s)
    assert one["account"] == "vision"  # in Slurm's spelling, whatever the request's
    decision = {"act": "approve", "start_s": now_s, "end_s": now_s + DAY_S + 1800, "nodes": "n2,n1"}
    assert ask(NOBODY, f"/{one['id']}", **decision)[0] == 403
    assert ask(NOBODY, f"/{one['id']}", act="deny")[0] == 403
    status, answer = ask(OPERATOR, f"/{one['id']}", **decision)
    assert (status, answer["reservation"]["nodes"]) == (200, "n[1-2]")

    with DatabaseClient(server.config) as client:
        client.send_reservation_reports([Report(id=one["id"], at_s=now_s + 3, state=ReservationState.ACTIVE)])
        (seen,) = client.reservations()
    assert (seen.state, seen.why) == (ReservationState.ACTIVE, ASKED["why"])
    (others,) = server.asked_by(UNRESOLVED, "GET", "/v1/reservations")[1]["reservations"]
    assert (others["user"], others["nodes"], others["why"], others["full"]) == (
        NAME_OF_NOBODY,
        "n[1-2]",
        None,
        False,
    )
    assert ask(UNRESOLVED, f"/{one['id']}", act="cancel")[0] == 403
    status, answer = ask(NOBODY, f"/{one['id']}", act="cancel", why="no data")
    assert (status, answer["reservation"]["state"]) == (200, "cancelled")
    assert server.asked_by(UNRESOLVED, "GET", "/v1/reservations")[1]["reservations"] == []
    assert len(server.asked_by(UNRESOLVED, "GET", "/v1/reservations?past=5")[1]["reservations"]) == 1
    assert (
        len(server.asked_by(UNRESOLVED, "GET", f"/v1/reservations?ids={one['id']}")[1]["reservations"]) == 1
    )


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
@pytest.mark.parametrize(
    ("user", "uid", "own"),
    [
        (NAME_OF_NOBODY, NOBODY, True),
        ("renamed", NOBODY, True),
        (NAME_OF_NOBODY, NOBODY - 1, False),  # of a former user with this name
        (NAME_OF_NOBODY, None, False),  # from an earlier release: the uid is unknown
    ],
)
def test_a_request_is_its_uids_and_not_whose_name_it_is_by_now(
    server: Running, user: str, uid: int | None, own: bool
) -> None:
    one = request(server.database, user, uid=uid)
    target = f"/v1/reservations?ids={one.id}"
    shown = {
        caller: next(
            item for item in server.asked_by(caller, "GET", target)[1]["reservations"] if item["id"] == one.id
        )
        for caller in (NOBODY, OPERATOR)
    }
    assert (shown[NOBODY]["full"], shown[NOBODY]["why"] is not None) == (own, own)
    assert shown[OPERATOR]["full"]
    cancel = f"/v1/reservations/{one.id}"
    assert server.asked_by(NOBODY, "POST", cancel, b'{"act": "cancel"}')[0] == (200 if own else 403)
    assert server.asked_by(OPERATOR, "POST", cancel, b'{"act": "cancel"}')[0] == (400 if own else 200)


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_a_reservation_has_the_uid_of_the_user_it_is_for(server: Running) -> None:
    def ask(caller: int, **more: Any) -> tuple[int, Any]:
        return server.asked_by(caller, "POST", "/v1/reservations", json.dumps({**ASKED, **more}).encode())

    for caller in (NOBODY, OPERATOR):
        status, answer = ask(caller, user=NAME_OF_NOBODY)
        assert (status, answer["reservation"]["uid"]) == (200, NOBODY)
        number = answer["reservation"]["id"]
        server.asked_by(NOBODY, "POST", f"/v1/reservations/{number}", b'{"act": "cancel"}')
    status, answer = ask(OPERATOR, user="no-such-user")
    assert (status, answer["error"]) == (400, "there is no user 'no-such-user' on slurm-gpudbd's host")


def test_the_limit_of_reservations_counts_by_uid(database: Database) -> None:
    for _ in range(3):
        request(database, "alice", uid=1001)
    assert request(database, "alice", uid=2001).uid == 2001  # the current owner of the name
    with pytest.raises(UsageError, match="has 3 open reservations"):
        request(database, "alice2", uid=1001)  # renamed


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_a_uid_without_a_user_name_is_no_matter_of_rights(server: Running) -> None:
    taken = {user.pw_uid for user in pwd.getpwall()}
    uid = next(uid for uid in range(4_000_000, 5_000_000) if uid not in taken)
    status, answer = server.asked_by(uid, "POST", "/v1/reservations", json.dumps(ASKED).encode())
    why = (
        f"uid {uid} has no user name on slurm-gpudbd's host: `getent passwd {uid}` must print an entry there"
    )
    assert (status, answer["error"]) == (400, why)


def test_one_whose_uid_is_not_known_counts_for_the_name(database: Database) -> None:
    for _ in range(3):
        request(database, "alice", uid=None)
    with pytest.raises(UsageError, match="has 3 open reservations"):
        request(database, "alice", uid=1001)


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"account": "nlp"}, "may not use the account nlp; allowed: vision"),
        ({"gpus": 0}, "`int` >= 1"),
        ({"gpus": 1.5}, "Expected `int`"),
        ({"duration_s": 59}, ">= 60"),
        ({"duration_s": 61 * DAY_S}, "last at most 60d (requested: 61d)"),
        ({"earliest_s": NOW_S + 61 * DAY_S}, "begin within 60d from now"),
        ({"earliest_s": NOW_S + 100, "latest_s": NOW_S + 99}, "before the earliest"),
        ({"why": ""}, "length >= 1"),
        ({"partition": "gpu; rm"}, "matching regex"),
        ({"nodes": "n1"}, "unknown field"),
        ({"partition": "gpu\n"}, "matching regex"),
        ({"partition": "-gpu"}, "matching regex"),
        ({"gpus": 2**63}, "`int` <= 1000000"),
        ({"duration_s": 1e30}, "Expected `int`"),
    ],
)
def test_impossible_values_are_refused_with_the_reason(
    server: Running, changes: dict[str, Any], why: str
) -> None:
    body = json.dumps({**ASKED, **changes}).encode()
    status, answer = server.asked_by(NOBODY, "POST", "/v1/reservations", body)
    assert status == 400
    assert why in answer["error"]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_without_accounts_of_users_nothing_is_requested(server: Running) -> None:
    status, answer = server.asked_by(UNRESOLVED, "POST", "/v1/reservations", json.dumps(ASKED).encode())
    assert status == 503
    assert "repeat the request when slurmdbd answers" in answer["error"]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_users_cannot_request_for_others_and_only_slurm_gpuctld_reports(server: Running) -> None:
    body = json.dumps({**ASKED, "user": "root"}).encode()
    assert server.asked_by(NOBODY, "POST", "/v1/reservations", body)[0] == 403
    report = {"id": 1, "at_s": 1, "state": "active"}
    reported = json.dumps({"reservations": [report]}).encode()
    assert server.asked_by(OPERATOR, "POST", "/v1/controller", reported)[0] == 403
    wrong = json.dumps({"reservations": [report | {"state": "denied"}]}).encode()
    assert server.asked_by(0, "POST", "/v1/controller", wrong)[0] == 400
    nowhere = json.dumps({"reservations": [report | {"nodes": "n[1-"}]}).encode()
    assert server.asked_by(0, "POST", "/v1/controller", nowhere)[0] == 400
    assert server.asked_by(OPERATOR, "POST", "/v1/reservations/999", b'{"act": "deny"}')[0] == 404
    assert server.asked_by(OPERATOR, "POST", f"/v1/reservations/{10**30}", b'{"act": "deny"}')[0] == 404
    for target in ("past=x", "past=1001", "ids=a", "ids=1,", "since=1"):
        assert server.asked_by(NOBODY, "GET", f"/v1/reservations?{target}")[0] == 400


@pytest.mark.parametrize(
    "changes",
    [{"nodes": None}, {"start_s": None}, {"nodes": "n[1-"}, {"nodes": 7}, {"state": "gone"}, {"id": ...}],
)
def test_an_answer_that_cannot_be_true_is_an_error_of_slurm_gpudbd(changes: dict[str, Any]) -> None:
    """Test that an impossible answer raises a handled error, which does not end slurm-gpuctld."""
    promised = Reservation(
        id=1,
        cluster=CLUSTER,
        user="alice",
        earliest_s=NOW_S,
        requested_s=NOW_S,
        state=ReservationState.APPROVED,
        start_s=NOW_S,
        end_s=NOW_S + DAY_S,
        nodes="n[1-2]",
        **ASKED,
    )
    assert from_json(Reservation, to_json(promised)) == promised
    answer = {name: value for name, value in {**to_json(promised), **changes}.items() if value is not ...}
    with pytest.raises(DatabaseError, match="cannot be read"):
        from_json(Reservation, answer)


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
@pytest.mark.parametrize("nodes", ["ALL", "n1,all", "n1 Flags=MAINT", "n[1-2", "n1\n", ","])
def test_nodes_are_named_one_by_one(server: Running, nodes: str) -> None:
    """Test that names such as ALL, which Slurm reads as the whole cluster, are rejected."""

    def ask(uid: int, path: str, **body: Any) -> tuple[int, Any]:
        return server.asked_by(uid, "POST", f"/v1/reservations{path}", json.dumps(body).encode())

    now_s = int(server.clock.wall())
    number = ask(NOBODY, "", **{**ASKED, "n_nodes": 1})[1]["reservation"]["id"]
    window = {"start_s": now_s, "end_s": now_s + DAY_S}
    status, answer = ask(OPERATOR, f"/{number}", act="approve", nodes=nodes, **window)
    assert ask(NOBODY, f"/{number}", act="cancel")[0] == 200
    assert status == 400
    assert "nodes: " in answer["error"]
