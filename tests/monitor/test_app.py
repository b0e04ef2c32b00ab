"""Test answers of the API with the real application and a cluster of sixty-four GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.synthetic import uid_of
from slurm_gpu.monitor.viewer import Viewer
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState
from tests.monitor.small_cluster import Here


def test_a_frame_has_one_octet_for_each_square_of_the_layout_that_it_names(here: Here):
    layout, frame = here.get("/api/v1/layout"), here.get("/api/v1/frame?metric=util")
    gpus = [
        gpu
        for zone in layout.json()["zones"]
        for rack in zone["racks"]
        for node in rack["nodes"]
        for gpu in node["gpus"]
    ]
    assert len(gpus) == len(frame.content) == 64
    assert frame.headers["x-layout"] == layout.json()["id"]


def test_a_page_that_is_open_is_noticed(here: Here):
    assert not here.board.is_viewed
    here.get("/api/v1/frame?metric=util")
    assert here.board.is_viewed


def test_before_the_first_poll_requests_fail_with_503(here: Here):
    here.board.state = None
    answer = here.get("/api/v1/layout")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "since slurm-gpuweb started" in answer.json()["error"]


def test_an_unchanged_frame_is_not_sent_again(here: Here):
    first = here.get("/api/v1/frame?metric=mem")
    again = here.get("/api/v1/frame?metric=mem", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["x-layout"] == first.headers["x-layout"]


def test_a_user_sees_gaps_in_all_frames_but_state_for_squares_of_others(here: Here):
    seen_by_all = {name: here.get(f"/api/v1/frame?metric={name}").content for name in _metrics(here)}
    user = here.any_user()
    here.viewer = Viewer(user, None, operator=False)
    state = here.board.state
    assert state is not None
    own = set(state.own[user, uid_of(user)])
    assert own
    for name, all_of_it in seen_by_all.items():
        shown = here.get(f"/api/v1/frame?metric={name}").content
        if name == "state":
            assert shown == all_of_it
        else:
            assert all(shown[at] == (all_of_it[at] if at in own else 255) for at in range(64)), name


def test_jobs_of_others_are_shown_without_their_names(here: Here):
    user = here.any_user()
    here.get("/api/v1/jobs")
    here.viewer = Viewer(user, None, operator=False)
    jobs = here.get("/api/v1/jobs").json()["jobs"]
    assert {job["user"] for job in jobs} > {user}
    assert all((job["name"] is not None) == job["full"] == (job["user"] == user) for job in jobs)


def test_deltas_of_jobs_add_up_to_the_full_list(here: Here):
    answer = here.get("/api/v1/jobs").json()
    known = {job["job_id"]: job for job in answer["jobs"]}
    for _ in range(30):
        here.source.step()
        here.poll()
        delta = here.get(f"/api/v1/jobs?since={answer['version']}").json()
        assert not delta["all"]
        for job_id in delta["gone"]:
            known.pop(job_id, None)
        known |= {job["job_id"]: job for job in delta["jobs"]}
        answer = delta
    everything = here.get("/api/v1/jobs").json()
    assert known == {job["job_id"]: job for job in everything["jobs"]}


def test_a_version_that_is_not_known_is_answered_with_everything(here: Here):
    everything = here.get("/api/v1/jobs").json()
    assert everything["all"]
    assert here.get("/api/v1/jobs?since=999999").json() == everything


@pytest.mark.parametrize(
    "query", ["metric=nothing", "metric=../../etc", "metric=util'--", "metric=a&metric=b"]
)
def test_a_metric_that_is_none_is_refused(here: Here, query: str):
    answer = here.get(f"/api/v1/frame?{query}")
    assert answer.status_code == 400
    assert "metric" in answer.json()["error"]


def test_a_path_that_is_not_there_is_answered_in_json(here: Here):
    answer = here.get("/api/v1/nothing")
    assert answer.status_code == 404
    assert "/api/v1/nothing" in answer.json()["error"]


def test_no_answer_redirects_to_the_host_header(here: Here):
    answer = here.get("/api/v1/free/", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


def _metrics(here: Here) -> list[str]:
    return [item["name"] for item in here.get("/api/v1/layout").json()["metrics"]]


def test_unknown_versions_use_no_memory(here: Here):
    state = here.board.state
    assert state is not None
    here.get("/api/v1/jobs")
    n = len(state.answers)
    for version in range(100, 150):
        here.get(f"/api/v1/jobs?since={version}")
        here.get(f"/api/v1/jobs?since=000{version}")
    assert len(state.answers) == n


def test_answers_are_cached_up_to_the_limit(here: Here):
    state = here.board.state
    assert state is not None
    state.answers._left_bytes = 3000
    for _ in range(2):
        sizes = {name: len(here.get(f"/api/v1/frame?metric={name}").content) for name in _metrics(here)}
        assert set(sizes.values()) == {64}
    assert len(state.answers) == 1


@pytest.mark.parametrize("since", ["-1", "x", "9" * 19, "1e3", "%00", "1;2"])
def test_a_version_that_is_no_number_is_refused(here: Here, since: str):
    answer = here.get(f"/api/v1/jobs?since={since}")
    assert (answer.status_code, "whole number" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("viewer", "sees"),
    [
        (Viewer("carol", 1000, operator=True), True),
        (Viewer("alice", 1001, operator=False), True),
        (Viewer("renamed", 1001, operator=False), True),
        (Viewer("alice", 2001, operator=False), False),
        (Viewer("bob", 1002, operator=False), False),
    ],
)
def test_the_reason_of_a_reservation_is_shown_only_to_its_user_and_operators(
    here: Here, monkeypatch: pytest.MonkeyPatch, viewer: Viewer, sees: bool
):
    asked = Reservation(
        id=3,
        cluster="lab",
        user="alice",
        uid=1001,
        account="vision",
        partition="gpu",
        gpus=8,
        n_nodes=2,
        duration_s=60,
        earliest_s=0,
        why="paper",
        state=ReservationState.REQUESTED,
        requested_s=0,
    )
    monkeypatch.setattr(here.source, "reservations", lambda: (asked, replace(asked, id=4, uid=None)))
    here.poll()
    here.viewer = viewer
    own, unknown = here.get("/api/v1/reservations").json()["reservations"]
    assert (own["why"] == "paper", own["full"]) == (sees, sees)
    assert unknown["full"] == viewer.operator, "of an earlier release: unknown"


@pytest.mark.parametrize("path", ["layout", "free", "queue", "reservations"])
def test_unchanged_answers_are_not_sent_with_the_next_state(path: str):
    here = Here(churn=0.0)
    here.poll()
    first = here.get(f"/api/v1/{path}")
    here.source.step()
    here.poll()
    again = here.get(f"/api/v1/{path}", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.headers["x-as-of-s"] > first.headers["x-as-of-s"]
