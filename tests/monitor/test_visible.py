"""The visible part of another user's run equals that of slurm-gpudbd, key by key."""

from __future__ import annotations

import pytest

from slurm_gpu.database.queries.run_queries import find_job
from slurm_gpu.http.identity import Caller
from slurm_gpu.monitor.cluster.visible import visible
from slurm_gpu.monitor.viewer import Visibility
from slurm_gpu.wire.answers.runs import Run
from tests.database.running_server import Running
from tests.database.samples import CLUSTER, record, row
from tests.database.test_run_detail import account, ship

ALL = Caller(0, "root", sees_all=True, writes=True)
BOB = Caller(60902, "bob", sees_all=False, writes=False)


def run_of(server: Running, caller: Caller) -> Run:
    with server.database.reading() as connection:
        (run,) = find_job(connection, CLUSTER, "1", caller, server.clock.wall(), 0.8).runs
    return run


@pytest.mark.parametrize(("user", "sees"), [("bob", False), ("alice", True), ("", False), ("Alice", False)])
def test_the_same_as_from_slurm_gpudbd(server: Running, user: str, sees: bool) -> None:
    ship(server, records=[record(node="here")])
    account(server)
    everything = run_of(server, ALL)
    assert everything.full
    shown = visible(everything, Visibility(False, user))
    assert shown == (everything if sees else run_of(server, BOB))


@pytest.mark.parametrize(
    ("user", "uid", "sees"),
    [("alice", 60901, True), ("alice", 2001, False), ("renamed", 60901, True), ("bob", 60902, False)],
)
def test_the_same_by_uid(server: Running, user: str, uid: int, sees: bool) -> None:
    ship(server, records=[record(node="here")])
    account(server, row(nodes="here", uid=60901))
    shown = visible(run_of(server, ALL), Visibility(False, user, uid))
    assert shown == run_of(server, Caller(uid, user, sees_all=False, writes=False))
    assert shown.full == sees


def test_an_operator_sees_all(server: Running) -> None:
    everything = run_of(server, ALL)
    assert visible(everything, Visibility(True, "")) is everything


@pytest.mark.parametrize(("user", "uid"), [("alice", 60901), ("alice", None), ("", None)])
def test_a_run_without_a_uid_is_operators_alone(user: str, uid: int | None) -> None:
    assert not Visibility(False, user, uid).may_see(user)
    assert Visibility(True, "").may_see(user)
