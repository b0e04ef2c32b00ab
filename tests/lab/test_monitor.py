"""Test that slurm-gpuweb on a real cluster shows GPU activity promptly, and only to permitted users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pwd
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.cluster import Lab
from lab.people import WEB_USER
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import SystemClock
from slurm_gpu.config.site import load_config
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.poller import Poller
from slurm_gpu.monitor.routes import RouteContext
from slurm_gpu.monitor.viewer import Viewer

_LONG = "#!/bin/sh\nexec simgpu --util 60 --mem-mib 8192 --seconds 300\n"
_SOON_S = 15.0
CAROL, ALICE, BOB = Viewer("carol", 60903, True), Viewer("alice", 60901, False), Viewer("bob", 60902, False)


class Page:
    """The parts of slurm-gpuweb, connected as in its daemon, and a signed-in user."""

    def __init__(self, lab: Lab) -> None:
        config = load_config(lab.layout.site_file)
        self.viewer = CAROL
        self.board = Board()
        clock = SystemClock()
        self.poller = Poller(lambda: DatabaseClient(config), self.board, config.cluster, {}, clock)
        site = RouteContext(self.board, lambda _: self.viewer, lambda: DatabaseClient(config), clock)
        self.app = make_app(site)

    def get(self, path: str, viewer: Viewer = CAROL) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
                return await client.get(path)

        self.viewer = viewer
        return asyncio.run(ask())

    def octet(self, square: int, metric: str, viewer: Viewer = CAROL) -> int:
        return self.get(f"/api/v1/frame?metric={metric}", viewer).content[square]

    def square(self, uuid: str) -> list[int]:
        """Return the values of one GPU, {} while there are none."""
        state = self.board.state
        assert state is not None
        return [state.layout.square_of[uuid]] if uuid in state.layout.square_of else []

    def squares(self, job: int) -> list[int]:
        jobs = self.get("/api/v1/jobs").json()["jobs"]
        rows = [one for one in jobs if one["job_id"] == job]
        return [at for row in rows for first, last in row["squares"] for at in range(first, last + 1)]

    def idle_s(self, node: str, uuid: str) -> float:
        """Return the seconds since the last sample in which a GPU was computing."""
        state = self.board.state
        assert state is not None
        idle_s = state.seen.live[node].devices[uuid].idle_s
        return float("inf") if idle_s is None else idle_s

    def age_s(self, node: str) -> float:
        """Return the age of the sample that the squares of a node show."""
        state = self.board.state
        assert state is not None
        values = state.seen.live.get(node)
        return time.time() - values.at_s if values is not None else float("inf")


@pytest.fixture
def page(lab: Lab) -> Iterator[Page]:
    page = Page(lab)
    stop = threading.Event()
    thread = threading.Thread(target=page.poller.run, args=(2.0, stop))
    thread.start()
    wait_for(lambda: page.board.state is not None, 60, "slurm-gpudbd has the cluster")
    yield page
    stop.set()
    thread.join()


def test_slurm_gpuweb_runs_and_reveals_nothing_without_sign_in(lab: Lab) -> None:
    url = f"http://127.0.0.1:{lab.layout.web_port}"
    assert httpx.get(f"{url}/openapi.json", trust_env=False).status_code == 200
    assert httpx.get(f"{url}/api/v1/frame", trust_env=False).status_code == 401


@contextlib.contextmanager
def signed_in(lab: Lab, user: str) -> Iterator[httpx.Client]:
    """A browser that opened the link printed by `slurm-gpu web` for a user."""
    link = json.loads(lab.output(["slurm-gpu", "web", "--json"], user=user))["url"]
    web, _, token = link.partition("/signin#")
    assert web == f"http://127.0.0.1:{lab.layout.web_port}"
    with httpx.Client(base_url=web, trust_env=False, headers={"X-Slurm-Gpu": "1"}) as browser:
        assert browser.post("/signin/token", json={"token": token}).json() == {"user": user}
        yield browser


def test_a_link_of_slurm_gpu_open_signs_its_caller_in(lab: Lab) -> None:
    with signed_in(lab, "alice") as browser:
        answer = browser.get("/api/v1/me").json()
        assert (answer["user"], answer["operator"], answer["signed_in"]) == ("alice", False, "link")
        assert browser.post("/signout").status_code == 204
        assert browser.get("/api/v1/me").status_code == 401


def test_slurm_gpuweb_runs_as_its_own_user_and_shows_users_only_their_data(lab: Lab) -> None:
    pid = lab.daemons["slurm-gpuweb"].pid
    assert Path(f"/proc/{pid}").stat().st_uid == pwd.getpwnam(WEB_USER).pw_uid
    job = lab.submit("alice", "--gpus=1", "--time=5", "--job-name=own", script=_LONG)
    wait_for(lambda: lab.intervals(job), 60, "the job starts")

    def name(browser: httpx.Client) -> object:
        answer = browser.get("/api/v1/jobs").json()["jobs"]
        return next((one["name"] or "hidden" for one in answer if one["job_id"] == job), None)

    for user, seen in (("carol", "own"), ("alice", "own"), ("bob", "hidden")):
        with signed_in(lab, user) as browser:
            assert wait_for(lambda b=browser: name(b), 60, "it is on the page", interval_s=0.5) == seen
    lab.output(["scancel", str(job)])


def test_ones_limits_are_those_of_slurm_gpu_quota(lab: Lab) -> None:
    with signed_in(lab, "alice") as browser:
        answer = wait_for(
            lambda: (me := browser.get("/api/v1/me").json())["limits"] is not None and me,
            60,
            "slurm-gpuctld reports them",
            lambda: str(browser.get("/api/v1/me").json()["limits_why"]),
            interval_s=0.5,
        )
        quota = json.loads(lab.output(["slurm-gpu", "quota", "--user", "alice", "--json"]))["limits"]
        assert quota
        fixed = ("rule", "on", "key", "unit", "limit", "mode", "why")
        assert [[line[key] for key in fixed] for line in answer["limits"]] == [
            [line[key] for key in fixed] for line in quota
        ]


def test_top_shows_gpus_with_their_jobs_and_utilisation(lab: Lab) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=_LONG)

    def rows(user: str) -> list[dict[str, Any]]:
        answer = json.loads(lab.output(["slurm-gpu", "top", "--json"], user=user))
        return [row for row in answer["rows"] if row["job_id"] == job]

    def computing() -> bool:
        return any(abs((pct or 0) - 60) <= 2 for row in rows("alice") for pct in row["util_pct"])

    wait_for(computing, 90, "it is seen to compute", interval_s=1.0)
    (interval,) = lab.intervals(job)
    (row,) = rows("bob")
    assert (row["nodes"], row["user"], row["gpus"]) == ([interval.node], "alice", list(interval.positions))
    assert row["util_pct"] == [None]  # bob does not own the job
    assert re.search(
        rf"{interval.positions[0]} +alice +{job}\b", lab.output(["slurm-gpu", "top"], user="bob")
    )
    lab.output(["scancel", str(job)])


def test_utilisation_is_on_the_square_for_permitted_users(lab: Lab, page: Page) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=_LONG)
    (interval,) = wait_for(lambda: lab.intervals(job), 60, "the job starts")
    uuid = lab.nodes[interval.node].at_position(interval.positions[0]).uuid
    square = wait_for(lambda: page.square(uuid), 90, "the GPU has its square")[0]
    # Check the job first: the GPU may have had the same utilisation for a previous job.
    wait_for(lambda: page.squares(job) == [square], 60, "it is the job's", interval_s=0.5)
    wait_for(lambda: abs(page.octet(square, "util") - 60) <= 2, 60, "it is seen to compute", interval_s=0.5)

    oldest_s = 0.0
    until = time.monotonic() + 25  # longer than two live values take
    while time.monotonic() < until:
        oldest_s = max(oldest_s, page.age_s(interval.node))
        time.sleep(0.2)
    assert oldest_s <= _SOON_S
    assert page.idle_s(interval.node, uuid) <= _SOON_S

    assert abs(page.octet(square, "util", ALICE) - 60) <= 2
    assert (page.octet(square, "util", BOB), page.octet(square, "mem", BOB)) == (255, 255)
    assert page.octet(square, "state", BOB) == 1
    assert page.get(f"/api/v1/jobs/{job}/window", BOB).status_code in (403, 404)

    def mine(viewer: Viewer) -> list[object]:
        runs = page.get(f"/api/v1/jobs/{job}", viewer).json().get("runs", [])
        return [run["name"] for run in runs]

    wait_for(lambda: mine(ALICE), 60, "accounting has it", interval_s=1.0)
    assert mine(BOB) == [None]
    assert None not in mine(ALICE)
    lab.output(["scancel", str(job)])


def test_while_slurm_gpudbd_is_down_the_last_state_remains_with_its_age(lab: Lab, page: Page) -> None:
    def age_s() -> float:
        return time.time() - float(page.get("/api/v1/frame?metric=state").headers["x-as-of-s"])

    before = page.get("/api/v1/frame?metric=state")
    lab.daemons["slurm-gpudbd"].kill9()
    try:
        wait_for(lambda: age_s() >= 5, 30, "the last state grows old", interval_s=0.5)
        now = page.get("/api/v1/frame?metric=state")
        assert now.status_code == 200
        assert len(now.content) == len(before.content)
        assert page.poller.error is not None
    finally:
        lab.daemons["slurm-gpudbd"].start()
    wait_for(lambda: age_s() < 5, 60, "it is read again", interval_s=0.5)
