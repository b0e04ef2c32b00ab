"""Ended runs are listed for their owner, and for operators with a search over all users."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.monitor.job.ended import PAGE, SORTS
from slurm_gpu.monitor.viewer import Viewer
from tests.monitor.small_cluster import Here

PATH = "/api/v1/runs"


def ask(here: Here, **query: str) -> dict[str, Any]:
    answer = here.get(PATH + "?" + "&".join(f"{name}={value}" for name, value in query.items()))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def here() -> Here:
    here = Here()
    here.source._n_nodes = 60  # 180 ended runs
    return here


def owner(here: Here) -> Viewer:
    run = here.source.runs(limit=1).runs[0]
    return Viewer(run.user, run.uid, operator=False)


def test_pages_follow_each_other_without_a_gap(here: Here) -> None:
    first = ask(here)
    assert len(first["runs"]) == PAGE
    second = ask(here, cursor=first["cursor"])
    ends = [run["end_s"] for run in first["runs"] + second["runs"]]
    assert ends == sorted(ends, reverse=True)
    assert len({run["id"] for run in first["runs"] + second["runs"]}) == 2 * PAGE


def test_later_pages_repeat_the_search_of_the_first(here: Here) -> None:
    find = "vision"
    first = ask(here, find=find)
    assert first["matched"] == "account"
    assert first["cursor"] is not None
    since_s, _, cursor = first["cursor"].split(".")
    here.clock.now += 3600
    second = ask(here, find=find, cursor=first["cursor"])
    assert (second["since_s"], second["matched"]) == (first["since_s"], "account")
    assert not {run["id"] for run in first["runs"]} & {run["id"] for run in second["runs"]}
    assert ask(here, find=find, cursor=f"{since_s}.user.{cursor}")["matched"] == "user"
    other = here.get(f"{PATH}?cursor={first['cursor']}")
    assert other.status_code == 400
    assert "belongs to another search" in other.json()["error"]
    assert ask(here, cursor=f"0..{cursor}")["since_s"] == first["since_s"] + 3600 - 86400


@pytest.mark.parametrize("sort", SORTS)
def test_each_column_can_be_sorted_both_ways(here: Here, sort: str) -> None:
    down, up = (ask(here, sort=sort, order=order)["runs"] for order in ("desc", "asc"))
    assert down[0]["id"] != up[0]["id"]


def test_users_list_their_own_runs_whatever_they_search(here: Here) -> None:
    here.viewer = owner(here)
    own = ask(here)["runs"]
    assert own
    assert {run["user"] for run in own} == {here.viewer.user}
    other = next(run for run in here.source.runs(limit=500).runs if run.user != here.viewer.user)
    for find in (other.user, f"user:{other.user}", other.account, f"account:{other.account}", other.id):
        assert {run["user"] for run in ask(here, find=find)["runs"]} <= {here.viewer.user}


def test_operators_can_list_and_search_their_own_runs(here: Here) -> None:
    me = owner(here)
    here.viewer = Viewer(me.user, me.uid, operator=True)
    own = ask(here, own="true")["runs"]
    assert {run["user"] for run in own} == {me.user}
    found = ask(here, own="true", find=own[0]["account"])["runs"]
    assert found
    assert {run["user"] for run in found} == {me.user}
    assert len({run["user"] for run in ask(here)["runs"]}) > 1


def test_runs_of_a_previous_owner_of_the_name_are_hidden(here: Here) -> None:
    here.viewer = Viewer(owner(here).user, 4242, operator=False)
    assert ask(here)["runs"] == []


def test_a_name_is_a_user_an_account_or_an_application(here: Here) -> None:
    for find, matched in (
        (owner(here).user, "user"),
        ("vision", "account"),
        ("account:vision", "account"),
        ("vasp", "app"),
    ):
        answer = ask(here, find=find)
        assert answer["matched"] == matched
        assert answer["runs"]
        assert all(find.rpartition(":")[2] == run[matched] for run in answer["runs"])
    assert ask(here, find="user:vision")["runs"] == []
    assert ask(here, find="nothing")["runs"] == []


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("sort=colour", "must be one of end"),
        ("order=up", "desc, asc"),
        ("x=1", "is unknown"),
        ("cursor=x", "is not the cursor of"),
    ],
)
def test_wrong_parameters_are_named(here: Here, query: str, why: str) -> None:
    answer = here.get(f"{PATH}?{query}")
    assert answer.status_code == 400
    assert why in answer.json()["error"]
