"""Rate limits of a user do not affect others."""

import asyncio
import contextlib
import json
import pwd
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.routing import Route

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.app import make_app
from slurm_gpu.database.http.rate_limits import BURST_S, WEB_FACTOR, CallerBounds, Share
from slurm_gpu.database.reservations.places import AGAIN_AFTER_FAILURE_S, KEPT_S, KeptPlaces
from slurm_gpu.database.settings import PerUser
from slurm_gpu.errors import DatabaseError
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.submission import UserAssociations
from tests.database.running_server import NOBODY, OPERATOR, ROOT, WEB, Running, acting_as, running_server
from tests.database.samples import FakeClock, record, segment

ALICE = Caller(1000, "alice", sees_all=False, writes=False)
BOB = Caller(1001, None, sees_all=True, writes=False)
SLURM = Caller(64030, "slurm", sees_all=True, writes=True)
PAGE = Caller(999, "slurm-gpu-web", sees_all=True, writes=False, is_web=True)
NEVER_WAIT_S = 0.001


def refused(bounds: CallerBounds, caller: Caller) -> HTTPException | None:
    """Return the error for one more request, or None if the request was started."""

    async def begin() -> None:
        await bounds.begin(caller)

    try:
        asyncio.run(begin())
    except HTTPException as error:
        return error
    return None


def test_concurrent_requests_are_limited_per_user() -> None:
    bounds = CallerBounds(PerUser(requests=2), FakeClock(), NEVER_WAIT_S)
    assert [refused(bounds, ALICE) for _ in range(2)] == [None, None]
    error = refused(bounds, ALICE)
    assert error is not None
    assert (error.status_code, error.headers) == (429, {"Retry-After": "1"})
    assert error.detail == "2 requests of alice are being served: try again in 1 s"
    assert refused(bounds, BOB) is None
    bounds.end(ALICE)
    assert refused(bounds, ALICE) is None


def test_rows_per_second_are_limited_per_user_with_a_burst() -> None:
    clock = FakeClock()
    bounds = CallerBounds(PerUser(rows_per_s=100), clock, NEVER_WAIT_S)
    assert refused(bounds, BOB) is None
    bounds.spend(BOB, 800)
    bounds.end(BOB)
    error = refused(bounds, BOB)
    assert error is not None
    assert error.headers == {"Retry-After": "3"}
    assert error.detail == "uid 1001 reads more than 100 rows a second: try again in 3 s"
    assert refused(bounds, ALICE) is None
    clock.now += 3.1
    assert refused(bounds, BOB) is None


def test_slurm_has_no_bound_and_slurm_gpuweb_a_larger_one() -> None:
    bounds = CallerBounds(PerUser(requests=1, rows_per_s=1), FakeClock(), NEVER_WAIT_S)
    assert [refused(bounds, PAGE) for _ in range(WEB_FACTOR)] == [None] * WEB_FACTOR
    assert refused(bounds, PAGE) is not None

    async def all_begin() -> None:
        for _ in range(100):
            share = Share(bounds)
            await share.begin(SLURM)
            share.spend(10**9)

    asyncio.run(all_begin())


def test_slurm_gpuwebs_uid_on_another_host_does_not_use_up_its_bounds() -> None:
    bounds = CallerBounds(PerUser(requests=1, rows_per_s=1), FakeClock(), NEVER_WAIT_S)
    elsewhere = replace(PAGE, sees_all=False, is_web=False)
    assert refused(bounds, elsewhere) is None
    bounds.spend(elsewhere, 1000)
    assert refused(bounds, elsewhere) is not None
    assert [refused(bounds, PAGE) for _ in range(WEB_FACTOR)] == [None] * WEB_FACTOR


def test_a_request_waits_for_a_moment_before_it_is_refused() -> None:
    bounds = CallerBounds(PerUser(requests=1), FakeClock(), wait_s=60)

    async def ask() -> list[str]:
        done = []

        async def one(name: str) -> None:
            await bounds.begin(ALICE)
            await asyncio.sleep(0)
            done.append(name)
            bounds.end(ALICE)

        await asyncio.gather(*(one(name) for name in "abc"))
        return done

    assert asyncio.run(ask()) == ["a", "b", "c"]


@given(
    st.lists(
        st.tuples(st.sampled_from([ALICE, BOB, PAGE]), st.integers(0, 3000), st.floats(0, 5)), max_size=60
    )
)
def test_no_user_reads_more_than_the_burst_and_the_rate(
    asked: list[tuple[Caller, int, float]],
) -> None:
    clock = FakeClock()
    bounds = CallerBounds(PerUser(requests=1, rows_per_s=100), clock, 0)
    read: dict[int, int] = {}
    last: dict[int, int] = {}
    waits: list[int] = []
    began_s = clock.monotonic()

    async def all_ask() -> None:
        for caller, n_rows, pause_s in asked:
            clock.now += pause_s
            try:
                await bounds.begin(caller)
            except HTTPException as error:
                waits.append(int((error.headers or {})["Retry-After"]))
                continue
            bounds.spend(caller, n_rows)
            bounds.end(caller)
            read[caller.uid] = read.get(caller.uid, 0) + n_rows
            last[caller.uid] = n_rows

    asyncio.run(all_ask())
    assert all(seconds >= 1 for seconds in waits)
    for uid, n_rows in read.items():
        per_s = 100 * (WEB_FACTOR if uid == PAGE.uid else 1)
        # The cost of a request is known only after its answer.
        assert n_rows - last[uid] <= per_s * (BURST_S + clock.monotonic() - began_s) + 1


@pytest.fixture
def places() -> dict[str, Callable[[str], UserAssociations]]:
    return {"ask": lambda user: UserAssociations()}


@pytest.fixture
def strict(
    tmp_path: Path, short_path: Path, munge_socket: str, places: dict[str, Callable[[str], UserAssociations]]
) -> Iterator[Running]:
    """Return a server with one concurrent request per user, and five rows while its clock is stopped."""
    with running_server(
        tmp_path,
        short_path / "strict.sock",
        munge_socket,
        per_user=PerUser(requests=1, rows_per_s=1),
        places_of=lambda user: places["ask"](user),
        wait_s=NEVER_WAIT_S,
    ) as running:
        yield running


def routes(strict: Running) -> list[tuple[str, str]]:
    """Return method and target of each endpoint for users."""
    found = []
    for route in make_app(strict.services, strict.posts).routes:
        assert isinstance(route, Route)
        if route.path != "/v1/node":
            target = route.path.replace("{job}", "1").replace("{id:int}", "1")
            target = target.replace("{token}", "t").replace("{user}", pwd.getpwuid(NOBODY).pw_name)
            found += [(method, target) for method in route.methods or () if method != "HEAD"]
    return found


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_over_its_rows_a_user_is_refused_by_every_endpoint_and_no_other_user_by_any(strict: Running) -> None:
    for _ in range(6):
        assert strict.asked_by(NOBODY, "GET", "/v1/runs")[0] == 200
    for method, target in routes(strict):
        body = b"{}" if method == "POST" else b""
        status, answer = strict.asked_by(NOBODY, method, target, body)
        assert status == 429, target
        assert "reads more than 1 rows a second" in answer["error"]
        for uid in (0, OPERATOR, WEB):
            assert strict.asked_by(uid, method, target, body)[0] != 429, (uid, target)
    strict.clock.now += 1
    assert strict.asked_by(NOBODY, "GET", "/v1/runs")[0] == 200


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_a_job_that_slurm_lost_costs_no_rows_since_none_are_sent(strict: Running) -> None:
    lost = [record(job_id=77, segment=segment(n)) for n in range(70, 90)]
    strict.database.write(lambda connection: store_records(connection, lost))
    answers = [strict.asked_by(NOBODY, "GET", "/v1/runs/77") for _ in range(2)]
    assert [(status, answer["runs"], answer["unmatched"]) for status, answer in answers] == [
        (200, [], 20)
    ] * 2


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_while_a_users_request_is_served_only_others_are(
    strict: Running, places: dict[str, Callable[[str], UserAssociations]]
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(user: str) -> UserAssociations:
        asked.set()
        go_on.wait(30)
        return UserAssociations(accounts=frozenset({"vision"}))

    places["ask"] = slow
    request = strict.signed_by(NOBODY, "POST", "/v1/reservations", REQUEST)
    answers: list[int] = []
    thread = threading.Thread(
        target=lambda: answers.append(strict.raw("POST", "/v1/reservations", REQUEST, request)[0])
    )
    thread.start()
    try:
        assert asked.wait(30)
        assert strict.asked_by(NOBODY, "GET", "/v1/health")[0] == 429
        assert strict.asked_by(OPERATOR, "GET", "/v1/health")[0] == 200
    finally:
        go_on.set()
        thread.join()
    assert answers == [200]
    assert strict.asked_by(NOBODY, "GET", "/v1/health")[0] == 200


REQUEST = json.dumps(
    {"account": "vision", "partition": "gpu", "gpus": 1, "n_nodes": 1, "duration_s": 3600, "why": "x"}
).encode()


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_requests_that_are_refused_run_sacctmgr_once_in_a_while(
    strict: Running, places: dict[str, Callable[[str], UserAssociations]]
) -> None:
    users: list[str] = []

    def asked(user: str) -> UserAssociations:
        users.append(user)
        return UserAssociations(accounts=frozenset({"physics"}))

    places["ask"] = asked
    wrong = json.loads(REQUEST)
    for body in ({**wrong, "duration_s": 10**9}, {**wrong, "latest_s": 1}):
        assert strict.asked_by(NOBODY, "POST", "/v1/reservations", json.dumps(body).encode())[0] == 400
    assert users == []
    for _ in range(20):
        status, answer = strict.asked_by(NOBODY, "POST", "/v1/reservations", REQUEST)
        assert (status, "may not use the account vision" in answer["error"]) == (400, True)
    assert users == [pwd.getpwuid(NOBODY).pw_name]
    strict.clock.now += KEPT_S
    strict.asked_by(NOBODY, "POST", "/v1/reservations", REQUEST)
    assert len(users) == 2


def test_while_sacctmgr_fails_it_is_not_queried_for_other_users() -> None:
    clock, users, works = FakeClock(), [], [False]

    def ask(user: str) -> UserAssociations:
        users.append(user)
        return UserAssociations(from_slurmdbd=works[0])

    kept = KeptPlaces(ask, clock)
    assert not any(kept.of(user).from_slurmdbd for user in ("a", "b", "c"))
    assert users == ["a"]
    works[0] = True
    clock.now += AGAIN_AFTER_FAILURE_S
    assert kept.of("b").from_slurmdbd
    assert kept.of("b").from_slurmdbd
    assert users == ["a", "b"]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_the_client_waits_as_requested_and_fails_in_the_end(strict: Running) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        strict.clock.now += seconds

    with acting_as(NOBODY), DatabaseClient(strict.config, sleep=sleep) as client:
        assert [len(client.runs().runs) for _ in range(15)] == [1] * 15
    assert len(waits) >= 3
    assert all(1 <= seconds < 2 for seconds in waits)
    waits.clear()
    with acting_as(NOBODY), DatabaseClient(strict.config, timeout_s=7, sleep=waits.append) as client:
        with contextlib.suppress(DatabaseError):
            client.runs()
        with pytest.raises(
            DatabaseError, match=r"temporarily rejects requests of this user: .* rows a second"
        ):
            client.runs()
    assert sum(waits) <= 2 * 8
